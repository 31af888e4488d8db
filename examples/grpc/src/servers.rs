//! An axum app and a tonic server behind one layer.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use crate::orders::{Order, Orders};

/// The budget of each client address, for HTTP and gRPC together: clones of a layer share it.
pub fn throttle(rate: Rate) -> anyhow::Result<ThrottleLayer> {
    Ok(ThrottleLayer::new(
        limit("per-ip", Gcra::new(rate).burst(rate.count())).by(ClientIp::peer()),
    )?)
}

/// Starts both servers, and returns their addresses: HTTP's, then gRPC's.
pub async fn start(throttle: ThrottleLayer, ports: [u16; 2]) -> anyhow::Result<[SocketAddr; 2]> {
    let [http, grpc] = ports.map(|port| TcpListener::bind(("127.0.0.1", port)));
    let (http, grpc) = (http.await?, grpc.await?);
    let addresses = [http.local_addr()?, grpc.local_addr()?];
    let orders = Orders::default();

    let app = Router::new()
        .route("/orders/{item}", post(place))
        .with_state(orders.clone())
        .layer(throttle.clone());
    // Tells the layer the peer's address. tonic does so by itself.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(http, app).await });

    let server = Server::builder().layer(throttle).add_service(orders);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(grpc)));
    Ok(addresses)
}

async fn place(State(orders): State<Orders>, Path(item): Path<String>) -> String {
    format!("order {}\n", orders.place(&Order { item }).number)
}
