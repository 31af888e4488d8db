//! The layer outside a router: plain tower, `ServiceBuilder`, hyper on a socket.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use throttle_tower::ClientIp;
use throttle_tower::extract::PeerAddr;
use throttle_tower::{Gcra, LimitReport, Rate, ThrottleBody, ThrottleLayer, limit};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::common::{Remote, Text, get, shared, text};

#[tokio::test]
async fn a_service_with_a_body_of_text() {
    let inner = tower::service_fn(|request: Request<String>| async move {
        Ok::<_, Infallible>(Response::new(request.into_body().to_uppercase()))
    });
    let service = ThrottleLayer::new(shared("p", 1)).unwrap().layer(inner);
    let ask = || Request::new("hello".to_owned());
    assert_eq!(
        text(service.clone().oneshot(ask()).await.unwrap()).await,
        "HELLO"
    );
    let refused = service.oneshot(ask()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        refused.headers()["content-type"],
        "application/problem+json"
    );
}

/// A wrapped body may be anything: it need not be `Send`, nor an HTTP body.
#[tokio::test]
async fn a_service_whose_bodies_are_none() {
    let inner = tower::service_fn(|request: Request<Rc<u8>>| async move {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let layer = ThrottleLayer::builder(shared("p", 2))
        .backend(Remote::slow(2, 2))
        .build()
        .unwrap();
    let response = layer
        .layer(inner.map_response(ThrottleBody::wrap))
        .oneshot(Request::new(Rc::new(7)))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn in_a_service_builder_between_other_layers() {
    let mut service = ServiceBuilder::new()
        .map_request(|mut request: Request<Text>| {
            request
                .extensions_mut()
                .insert(PeerAddr(Ipv4Addr::LOCALHOST.into()));
            request
        })
        .layer(
            ThrottleLayer::new(limit("p", Gcra::new(Rate::per_minute(1))).by(ClientIp::peer()))
                .unwrap(),
        )
        .timeout(Duration::from_secs(60))
        .service_fn(|request: Request<Text>| async move {
            let report = request
                .extensions()
                .get::<LimitReport>()
                .expect("the throttle leaves its report");
            let left = report.decision().remaining().to_string();
            Ok::<_, Infallible>(Response::new(Text::from(left)))
        });
    let admitted = service.ready().await.unwrap().call(get()).await.unwrap();
    assert_eq!(text(admitted).await, "0");
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call(get())
            .await
            .unwrap()
            .status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

/// hyper on a real socket, several connections, each with a service of its own.
#[tokio::test]
async fn on_hyper() {
    let throttle =
        ThrottleLayer::new(limit("p", Gcra::new(Rate::per_day(1)).burst(2)).by(ClientIp::peer()))
            .unwrap();
    let address = serve(throttle).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let client = Client::builder(TokioExecutor::new()).build_http::<Text>();
        let response = client
            .get(format!("http://{address}/").parse().unwrap())
            .await
            .unwrap();
        let header = |name| {
            response
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let found = (
            response.status().as_u16(),
            header("ratelimit"),
            header("retry-after"),
            header("content-length"),
        );
        let length = found.3.clone().unwrap();
        let body = text(response).await;
        assert_eq!(body.len().to_string(), length);
        seen.push((
            found.0,
            found.1.unwrap(),
            found.2.is_some(),
            body.starts_with("hello"),
        ));
    }
    assert_eq!(seen[0].0, 200);
    assert!(seen[0].1.starts_with("\"p\";r=1;t="), "{seen:?}");
    assert_eq!((seen[1].0, seen[1].2, seen[1].3), (200, false, true));
    assert!(seen[1].1.starts_with("\"p\";r=0;t="), "{seen:?}");
    assert_eq!((seen[2].0, seen[2].2, seen[2].3), (429, true, false));
}

/// Serves `hello` until the runtime ends.
async fn serve(throttle: ThrottleLayer) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let hello = tower::service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Text::from("hello")))
            });
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(peer);
                    request
                })
                .layer(throttle.clone())
                .service(hello);
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(connection);
        }
    });
    address
}
