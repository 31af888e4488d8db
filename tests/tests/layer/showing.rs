//! What `Debug` shows of layers, services and what they are made of: names and settings, and no
//! key.

use std::task::Poll;

use http::Request;
use throttle_tower::{
    Constant, Gcra, Header, InFlight, LimitReport, Permit, Rate, ThrottleLayer, Usage, all, limit,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{Strict, Text, memory, poll, shared};

#[test]
fn debug_shows_the_policies_of_a_layer_and_its_service() {
    let layer = ThrottleLayer::new(shared("per-tenant", 5)).unwrap();
    let service = layer.layer(Strict::default());
    for shown in [format!("{layer:?}"), format!("{service:?}")] {
        assert!(shown.contains("per-tenant"), "{shown}");
    }
    assert!(format!("{service:?}").contains("Strict"), "{service:?}");
}

/// The handler and the body show what the request holds, by the names of the limits.
#[tokio::test]
async fn debug_shows_what_a_request_holds() {
    let tokens = limit("tokens", Gcra::new(Rate::per_minute(100)))
        .by(Header::new("x-api-key"))
        .cost(7)
        .settled_later();
    let limits = all((
        tokens,
        limit("uploads", InFlight::new(9)).by(Constant).cost(3),
    ));
    let layer = ThrottleLayer::builder(limits)
        .backend(memory())
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |request: Request<Text>| {
        let extensions = request.extensions();
        assert_eq!(
            format!("{:?}", extensions.get::<Permit>().unwrap()),
            r#"{"uploads": 3}"#
        );
        assert_eq!(
            format!("{:?}", extensions.get::<Usage>().unwrap()),
            r#"{"tokens": 7}"#
        );
        let report = format!("{:?}", extensions.get::<LimitReport>().unwrap());
        assert!(
            report.contains("tokens") && report.contains("Decision"),
            "{report}"
        );
        Ok::<_, std::convert::Infallible>(http::Response::new(Text::from("hello")))
    }));
    let request = Request::get("/")
        .header("x-api-key", "hunter2")
        .body(Text::default())
        .unwrap();
    let mut response = Box::pin(service.oneshot(request));
    let Poll::Ready(Ok(response)) = poll(&mut response) else {
        panic!("memory answers at once")
    };
    let body = format!("{:?}", response.body());
    assert!(
        body.contains("uploads") && body.contains("tallies") && !body.contains("hunter2"),
        "{body}"
    );
}
