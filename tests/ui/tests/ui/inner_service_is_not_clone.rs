use std::convert::Infallible;
use std::future::Ready;
use std::task::{Context, Poll};

use http::{Request, Response};
use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
use tower::{Layer, Service};

struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::default()))
    }
}

fn main() {
    let throttle = ThrottleLayer::new(limit("all", Gcra::new(Rate::per_second(10))).by(Constant)).unwrap();
    let mut service = throttle.layer(Hello);
    let _ = service.call(Request::new(()));
}
