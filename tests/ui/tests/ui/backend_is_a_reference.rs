use throttle_tower::{Constant, Gcra, MemoryBackend, Rate, ThrottleLayer, limit};

fn main() {
    let throttle = ThrottleLayer::builder(limit("all", Gcra::new(Rate::per_second(10))).by(Constant));
    let backend = MemoryBackend::new();
    let _ = throttle.clone().backend(&backend);
    let _ = throttle.backend(MemoryBackend::builder().max_keys(1_000));
}
