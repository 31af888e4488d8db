//! What `Debug` shows of layers, services and what they are made of: names and settings, and no key.

use std::task::Poll;

use http::Request;
use throttle_tower::{Concurrency, Gcra, Header, InFlight, LimitReport, Rate, ThrottleLayer, Usage, all, limit};
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

/// What the head of the response has made final is not kept with the body.
#[tokio::test]
async fn debug_shows_no_charge_that_is_final() {
    let limit = shared("p", 5).refund_failed();
    let service = ThrottleLayer::new(limit).unwrap().backend(memory()).unwrap().layer(Strict::default());
    let response = service.oneshot(Request::new(Text::default())).await.unwrap();
    let body = format!("{:?}", response.body());
    assert!(!body.contains("tallies"), "{body}");
}

/// The handler and the body show what the request holds, by the names of the limits.
#[tokio::test]
async fn debug_shows_what_a_request_holds() {
    let tokens = limit("tokens", Gcra::new(Rate::per_minute(100))).by(Header::new("x-api-key")).cost(7).settled_later();
    let limits = all((tokens, Concurrency::new(9).name("uploads").cost(3)));
    let layer = ThrottleLayer::new(limits).unwrap().backend(memory()).unwrap();
    let service = layer.layer(service_fn(async |request: Request<Text>| {
        let extensions = request.extensions();
        assert_eq!(format!("{:?}", extensions.get::<InFlight>().unwrap()), r#"{"uploads": 3}"#);
        assert_eq!(format!("{:?}", extensions.get::<Usage>().unwrap()), r#"{"tokens": 7}"#);
        let report = format!("{:?}", extensions.get::<LimitReport>().unwrap());
        assert!(report.contains("tokens") && report.contains("Decision"), "{report}");
        Ok::<_, std::convert::Infallible>(http::Response::new(Text::from("hello")))
    }));
    let request = Request::get("/").header("x-api-key", "hunter2").body(Text::default()).unwrap();
    let mut response = Box::pin(service.oneshot(request));
    let Poll::Ready(Ok(response)) = poll(&mut response) else { panic!("memory answers at once") };
    let body = format!("{:?}", response.body());
    assert!(body.contains("uploads") && body.contains("tallies") && !body.contains("hunter2"), "{body}");
}

/// Options that make the layer keep the decision for the response do not add a report to it.
#[tokio::test]
async fn response_has_a_report_only_if_one_is_asked_for() {
    let layer = ThrottleLayer::new(shared("p", 5)).unwrap().hide_headers_if(|_, _| true);
    for (layer, is_asked_for) in [(layer.clone(), false), (layer.report_in_response(true), true)] {
        let response = layer.layer(Strict::default()).oneshot(Request::new(Text::default())).await.unwrap();
        assert_eq!(response.extensions().get::<LimitReport>().is_some(), is_asked_for);
        assert!(response.headers().is_empty(), "{:?}", response.headers());
    }
}
