use throttle_tower::{Constant, LeakyBucket, Rate, limit};

fn main() {
    let _ = limit("per-ip", LeakyBucket::new(Rate::per_second(10))).by(Constant);
}
