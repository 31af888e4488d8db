use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, all, limit};

fn main() {
    let one = |name: &str| limit(name, Gcra::new(Rate::per_second(10))).by(Constant);
    let _ = all(one("a"));
    let _ = ThrottleLayer::new([one("a"), one("b")]);
}
