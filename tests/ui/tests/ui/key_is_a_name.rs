use throttle_tower::{Gcra, Rate, limit};

fn main() {
    let _ = limit("per-key", Gcra::new(Rate::per_second(10))).by("x-api-key");
}
