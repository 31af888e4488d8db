use std::convert::Infallible;

use http::{Request, Response};
use throttle_tower::{Constant, Gcra, Rate, Throttle, ThrottleLayer, limit};
use tower::{Layer, Service, service_fn};

struct OwnBody;

fn serve(_: impl Service<Request<()>>) {}

fn main() {
    let throttle = ThrottleLayer::new(limit("all", Gcra::new(Rate::per_second(10))).by(Constant)).unwrap();
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(OwnBody)));
    let service: Throttle<_> = throttle.layer(inner);
    serve(service);
}
