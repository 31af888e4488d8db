//! A real tonic server under the layer, over loopback, with tonic's client.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use throttle_core::{Gcra, Key, Rate};
use throttle_tower::{ClientIp, Concurrency, KeyExtractor, OnMissing, Route, ThrottleLayer, limit};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tower::Service;

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
                    let count = tower::service_fn(async |_: Request<String>| {
                        let numbers = tokio_stream::iter(["1", "2", "3"].map(|number| Ok(number.to_owned())));
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
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer).add_service(Greeter);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn call(channel: &Channel, path: &'static str) -> Result<String, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let request = Request::new("ada".to_owned());
    let codec = ProstCodec::<String, String>::default();
    Ok(client.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
}

async fn stream(channel: &Channel) -> Result<Streaming<String>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let request = Request::new(String::new());
    let codec = ProstCodec::<String, String>::default();
    Ok(client.server_streaming(request, PathAndQuery::from_static(COUNT), codec).await?.into_inner())
}

#[tokio::test]
async fn peer_of_a_tonic_server_is_found_and_its_client_reads_the_refusal() {
    let peers = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&peers);
    let limits = limit("per-ip", Gcra::new(Rate::per_hour(2)).burst(2)).by(ClientIp::peer());
    let limits = limits.on_missing(OnMissing::Reject(http::StatusCode::FORBIDDEN));
    let layer = ThrottleLayer::new(limits).unwrap().on_decision(move |event| {
        seen.lock().unwrap().push(ClientIp::peer().extract(event.parts));
    });
    let channel = connect(layer).await;
    for _ in 0..2 {
        assert_eq!(call(&channel, HELLO).await.unwrap(), "hello ada");
    }
    let refused = call(&channel, HELLO).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "quota exceeded: per-ip"));
    let wait = refused.get_details_retry_info().unwrap().retry_delay.unwrap().as_secs();
    assert!((1_700..=1_800).contains(&wait), "{wait}");
    assert!(refused.metadata().get("retry-after").is_some(), "the headers are metadata");
    let local = Some(Key::from(IpAddr::from(Ipv4Addr::LOCALHOST)));
    assert_eq!(*peers.lock().unwrap(), [local.clone(), local.clone(), local]);
}

#[tokio::test]
async fn methods_have_budgets_and_those_that_do_not_exist_share_one() {
    let limits = limit("per-method", Gcra::new(Rate::per_hour(1)).burst(1)).by(Route::grpc([HELLO, COUNT]));
    let channel = connect(ThrottleLayer::new(limits).unwrap()).await;
    let mut codes = Vec::new();
    for path in [HELLO, "/test.Greeter/Unknown", "/test.Greeter/Other", "/other.Service/Hello", HELLO] {
        codes.push(call(&channel, path).await.map_or_else(|status| status.code(), |_| Code::Ok));
    }
    let refused = Code::ResourceExhausted;
    assert_eq!(codes, [Code::Ok, Code::Unimplemented, refused, refused, refused]);
    assert!(stream(&channel).await.is_ok(), "another method");
}

#[tokio::test]
async fn permit_of_a_stream_is_held_until_its_trailers() {
    let layer = ThrottleLayer::new(Concurrency::new(1)).unwrap();
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
