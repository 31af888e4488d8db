use throttle_tower::{Constant, Rate, limit};

fn main() {
    let _ = limit("per-ip", Rate::per_second(10)).by(Constant);
    let _ = limit("per-ip", "10/second").by(Constant);
}
