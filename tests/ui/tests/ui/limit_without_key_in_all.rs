use throttle_tower::{Constant, Gcra, Rate, all, limit};

fn main() {
    let _ = all([limit("per-ip", Gcra::new(Rate::per_second(10))), limit("all", Gcra::new(Rate::per_second(100)))]);
    let _ = all((
        limit("per-ip", Gcra::new(Rate::per_second(10))),
        limit("all", Gcra::new(Rate::per_second(100))).by(Constant),
    ));
}
