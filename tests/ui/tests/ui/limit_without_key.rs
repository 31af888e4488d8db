use throttle_tower::{Gcra, Rate, ThrottleLayer, limit};

fn main() {
    let _ = ThrottleLayer::new(limit("per-ip", Gcra::new(Rate::per_second(10))));
}
