//! The service `shop.Orders`, written by hand so that the build needs no `protoc`. With a `.proto`
//! file, `tonic-prost-build` generates what is in this file, and nothing else of the example
//! changes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The methods that exist. With `Route::grpc(METHODS)` each gets a budget of its own.
pub const METHODS: [&str; 1] = ["/shop.Orders/Place"];

#[derive(Clone, PartialEq, prost::Message)]
pub struct Order {
    #[prost(string, tag = "1")]
    pub item: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Placed {
    #[prost(uint64, tag = "1")]
    pub number: u64,
}

/// What both servers do: numbers the orders.
#[derive(Clone, Default)]
pub struct Orders(Arc<AtomicU64>);

impl Orders {
    pub fn place(&self, _: &Order) -> Placed {
        Placed {
            number: self.0.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}

impl NamedService for Orders {
    const NAME: &'static str = "shop.Orders";
}

impl Service<http::Request<Body>> for Orders {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let orders = self.clone();
        Box::pin(async move {
            if !METHODS.contains(&request.uri().path()) {
                return Ok(Status::unimplemented("there is no such method").into_http());
            }
            let codec = ProstCodec::<Placed, Order>::default();
            Ok(tonic::server::Grpc::new(codec)
                .unary(Place(orders), request)
                .await)
        })
    }
}

/// The method of the service.
struct Place(Orders);

impl tonic::server::UnaryService<Order> for Place {
    type Response = Placed;
    type Future = std::future::Ready<Result<Response<Placed>, Status>>;

    fn call(&mut self, request: Request<Order>) -> Self::Future {
        std::future::ready(Ok(Response::new(self.0.place(request.get_ref()))))
    }
}

/// Calls the service.
pub async fn place(channel: &Channel, item: &str) -> Result<u64, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<Order, Placed>::default();
    let (order, path) = (
        Order {
            item: item.to_owned(),
        },
        PathAndQuery::from_static(METHODS[0]),
    );
    Ok(client
        .unary(Request::new(order), path, codec)
        .await?
        .into_inner()
        .number)
}
