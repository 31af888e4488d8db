use http::request::Parts;
use throttle_tower::{Gcra, Rate, limit};

fn main() {
    let _ = limit("per-host", Gcra::new(Rate::per_second(10))).by(|parts: &Parts| parts.uri.host().map(str::to_owned));
}
