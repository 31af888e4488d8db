//! An axum app and a tonic server that share one budget, and a client that obeys it; see README.md.

mod client;
mod orders;
mod servers;

use throttle_tower::Rate;
use tonic::transport::Endpoint;

const PORTS: [u16; 2] = [3005, 3006];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("client") {
        let channel = Endpoint::from_shared(format!("http://127.0.0.1:{}", PORTS[1]))?
            .connect()
            .await?;
        for _ in 0..8 {
            println!("order {}", client::place(&channel, "tea").await?);
        }
        return Ok(());
    }
    let [http, grpc] = servers::start(servers::throttle("5/10s".parse::<Rate>()?)?, PORTS).await?;
    println!("HTTP on {http}, gRPC on {grpc}");
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tonic::Code;
    use tonic_types::StatusExt;

    use super::*;

    /// The status of an order by HTTP.
    async fn by_http(address: std::net::SocketAddr) -> u16 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"POST /orders/tea HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn http_and_grpc_share_one_budget() {
        // No unit comes back during the test.
        let throttle = servers::throttle(Rate::new(120, Duration::from_secs(30 * 86_400))).unwrap();
        let [http, grpc] = servers::start(throttle, [0, 0]).await.unwrap();
        let channel = Endpoint::from_shared(format!("http://{grpc}"))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let by_http: Vec<_> = (0..100).map(|_| tokio::spawn(by_http(http))).collect();
        let by_grpc: Vec<_> = (0..100)
            .map(|_| {
                let channel = channel.clone();
                tokio::spawn(async move { orders::place(&channel, "tea").await })
            })
            .collect();
        let mut admitted = 0;
        for status in by_http {
            match status.await.unwrap() {
                200 => admitted += 1,
                status => assert_eq!(status, 429),
            }
        }
        for placed in by_grpc {
            match placed.await.unwrap() {
                Ok(_) => admitted += 1,
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted);
                    assert!(
                        status
                            .get_details_retry_info()
                            .is_some_and(|info| info.retry_delay.is_some())
                    );
                }
            }
        }
        assert_eq!(admitted, 120);
    }

    #[tokio::test]
    async fn client_waits_as_told() {
        let throttle = servers::throttle(Rate::new(2, Duration::from_secs(1))).unwrap();
        let [_, grpc] = servers::start(throttle, [0, 0]).await.unwrap();
        let channel = Endpoint::from_shared(format!("http://{grpc}"))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let started = std::time::Instant::now();
        for number in 1..=4 {
            assert_eq!(client::place(&channel, "tea").await.unwrap(), number);
        }
        assert!(
            started.elapsed() >= Duration::from_millis(990),
            "two of four had to wait for half a second each"
        );
    }
}
