use http::request::Parts;
use throttle_tower::{Constant, Gcra, Rate, limit};

fn main() {
    let limit = limit("per-ip", Gcra::new(Rate::per_second(10))).by(Constant);
    let _ = limit.clone().cost("five");
    let _ = limit.clone().cost(-1);
    let _ = limit.clone().cost(5_u32);
    let _ = limit.clone().cost(|_: &Parts| "five");
}
