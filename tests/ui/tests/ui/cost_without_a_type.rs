use throttle_tower::{Constant, Gcra, Rate, limit};

fn main() {
    let limit = limit("exports", Gcra::new(Rate::per_second(10))).by(Constant);
    let _ = limit.cost(|parts| if parts.uri.path() == "/export" { 20 } else { 1 });
}
