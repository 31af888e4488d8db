//! A real tonic server under the layer, over loopback, with tonic's client.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use throttle_core::{FixedWindow, Gcra, Key, Rate};
use throttle_tower::shape::ShapeError;
use throttle_tower::{
    ClientIp, Constant, Dialect, InFlight, KeyExtractor, OnMissing, Pace, ShapeLayer,
    ThrottleLayer, Usage, limit,
};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tower::{BoxError, Layer, Service};

const HELLO: &str = "/test.Greeter/Hello";
const COUNT: &str = "/test.Greeter/Count";

/// Greets, and counts to three.
#[derive(Clone)]
struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "test.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let codec = ProstCodec::<String, String>::default();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(codec);
            Ok(match request.uri().path() {
                HELLO => {
                    let hello = tower::service_fn(async |name: Request<String>| {
                        Ok::<_, Status>(Response::new(format!("hello {}", name.get_ref())))
                    });
                    grpc.unary(hello, request).await
                }
                COUNT => {
                    let count = tower::service_fn(async |request: Request<String>| {
                        let usage = request.extensions().get::<Usage>().cloned();
                        let numbers = tokio_stream::iter(1..=3).map(move |number: u8| {
                            // Each message is counted when it is sent.
                            if let Some(usage) = &usage {
                                usage.add("messages", 1).expect("a limit of that name");
                            }
                            Ok(number.to_string())
                        });
                        Ok::<_, Status>(Response::new(numbers))
                    });
                    grpc.server_streaming(count, request).await
                }
                _ => Status::unimplemented("there is no such method").into_http(),
            })
        })
    }
}

/// Serves under the layer and connects to it.
async fn connect(layer: ThrottleLayer) -> Channel {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer).add_service(Greeter);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

async fn call<C>(channel: &C, path: &'static str) -> Result<String, Status>
where
    C: GrpcService<
            Body,
            ResponseBody: http_body::Body<Data = bytes::Bytes, Error: Into<BoxError>>
                              + Send
                              + 'static,
        >,
    C: Clone,
{
    let mut client = Grpc::new(channel.clone());
    client
        .ready()
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    let request = Request::new("ada".to_owned());
    let codec = ProstCodec::<String, String>::default();
    Ok(client
        .unary(request, PathAndQuery::from_static(path), codec)
        .await?
        .into_inner())
}

async fn stream(channel: &Channel) -> Result<Streaming<String>, Status> {
    Ok(stream_with_metadata(channel).await?.1)
}

/// Returns the server's `RateLimit` as well.
async fn stream_with_metadata(channel: &Channel) -> Result<(String, Streaming<String>), Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let request = Request::new(String::new());
    let codec = ProstCodec::<String, String>::default();
    let response = client
        .server_streaming(request, PathAndQuery::from_static(COUNT), codec)
        .await?;
    let fields = response
        .metadata()
        .get("ratelimit")
        .map_or("", |fields| fields.to_str().unwrap_or_default())
        .to_owned();
    Ok((fields, response.into_inner()))
}

#[tokio::test]
async fn peer_of_a_tonic_server_is_found_and_its_client_reads_the_refusal() {
    let peers = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&peers);
    let limits = limit("per-ip", Gcra::new(Rate::per_hour(2)).burst(2)).by(ClientIp::peer());
    let limits = limits.on_missing(OnMissing::Reject(http::StatusCode::FORBIDDEN));
    let layer = ThrottleLayer::builder(limits)
        .on_decision(move |event| {
            seen.lock()
                .unwrap()
                .push(ClientIp::peer().extract(event.parts));
        })
        .build()
        .unwrap();
    let channel = connect(layer).await;
    for _ in 0..2 {
        assert_eq!(call(&channel, HELLO).await.unwrap(), "hello ada");
    }
    let refused = call(&channel, HELLO).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::ResourceExhausted, "quota exceeded: per-ip")
    );
    let wait = refused
        .get_details_retry_info()
        .unwrap()
        .retry_delay
        .unwrap()
        .as_secs();
    assert!((1_700..=1_800).contains(&wait), "{wait}");
    assert!(
        refused.metadata().get("retry-after").is_some(),
        "the headers are metadata"
    );
    let local = Some(Key::from(IpAddr::from(Ipv4Addr::LOCALHOST)));
    assert_eq!(
        *peers.lock().unwrap(),
        [local.clone(), local.clone(), local]
    );
}

#[tokio::test]
async fn permit_of_a_stream_is_held_until_its_trailers() {
    let layer = ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant)).unwrap();
    let channel = connect(layer.clone()).await;
    for _ in 0..50 {
        let mut numbers = stream(&channel).await.unwrap();
        let mut read = Vec::new();
        while let Some(number) = numbers.message().await.unwrap() {
            read.push(number);
        }
        assert_eq!(read, ["1", "2", "3"]);
        // The client has read the trailers, so the next call finds the permit free.
        assert_eq!(call(&channel, HELLO).await.unwrap(), "hello ada");
    }
    assert_eq!(layer.in_flight("in-flight"), Some(0));
}

#[tokio::test]
async fn messages_of_a_stream_are_charged_as_sent_and_settled_at_its_end() {
    let hour = FixedWindow::new(Rate::per_hour(100));
    let messages = limit("messages", hour)
        .by(throttle_tower::Constant)
        .cost(|_: &http::request::Parts| 10);
    let channel = connect(ThrottleLayer::new(messages.settled_later()).unwrap()).await;
    // An estimate of ten is charged at first. The stream before has used three.
    for left in [90, 87, 84] {
        let (fields, mut numbers) = stream_with_metadata(&channel).await.unwrap();
        assert!(
            fields.starts_with(&format!("\"messages\";r={left};")),
            "{fields}"
        );
        while numbers.message().await.unwrap().is_some() {}
    }
}

/// Around a channel, the layer is a service for generated clients. The server says how long to
/// wait: by its `RateLimit` in the metadata of an answer, and by the pushback of a refusal.
#[tokio::test]
async fn shaped_channel_obeys_the_server() {
    let five =
        || limit("five", Gcra::new(Rate::per_second(5)).burst(1)).by(throttle_tower::Constant);
    for dialect in [Dialect::Draft11, Dialect::None] {
        let channel = connect(
            ThrottleLayer::builder(five())
                .headers(dialect)
                .build()
                .unwrap(),
        )
        .await;
        let pace = Pace::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(10));
        let shaped = ShapeLayer::new(pace)
            .unwrap()
            .obey_upstream()
            .layer(channel.clone());
        let start = Instant::now();
        let mut codes = Vec::new();
        for _ in 0..3 {
            codes.push(
                call(&shaped, HELLO)
                    .await
                    .map_or_else(|status| status.code(), |_| Code::Ok),
            );
        }
        let (ok, refused) = (Code::Ok, Code::ResourceExhausted);
        let expected = match dialect {
            Dialect::None => [ok, refused, ok],
            _ => [ok; 3],
        };
        assert_eq!(
            codes, expected,
            "{dialect:?}: no call is refused twice for one announcement"
        );
        assert!(
            start.elapsed() >= Duration::from_millis(400),
            "as long as the server's pace takes for three"
        );
    }
}

#[tokio::test]
async fn call_that_the_shaper_refuses_is_a_status_that_says_why() {
    let ample = limit("ample", Gcra::new(Rate::per_second(1_000))).by(throttle_tower::Constant);
    let channel = connect(ThrottleLayer::new(ample).unwrap()).await;
    let pace = Pace::new(Rate::per_hour(1)).max_wait(Duration::ZERO);
    let shaped = ShapeLayer::new(pace).unwrap().layer(channel);
    assert_eq!(call(&shaped, HELLO).await.unwrap(), "hello ada");
    let refused = call(&shaped, HELLO).await.unwrap_err();
    assert_eq!(
        refused.code(),
        Code::Unknown,
        "as of any error that is not the channel's: {refused:?}"
    );
    let full = std::error::Error::source(&refused)
        .and_then(|cause| cause.downcast_ref::<ShapeError<tonic::transport::Error>>());
    assert!(
        full.and_then(ShapeError::queue_full)
            .is_some_and(|full| full.retry_after.is_some()),
        "{refused:?}"
    );
}
