use throttle_tower::{Constant, Gcra, Rate, all, any, limit};

fn main() {
    let one = |name: &str| limit(name, Gcra::new(Rate::per_second(10))).by(Constant);
    let _ = all([one("a"), any([one("b"), one("c")])]);
}
