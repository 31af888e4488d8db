//! As many clients as are in flight, each of which asks again as soon as it has its answer.

use std::fs;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;

pub const IN_FLIGHT: usize = 32;
/// Of gRPC: each carries eight streams.
const CONNECTIONS: usize = 4;
const KEYS: u32 = 10_000;

pub struct Load {
    elapsed: Duration,
    /// How long each request took, in ascending order.
    micros: Vec<u32>,
    /// Processor time of the process, a request.
    pub server_micros: f64,
}

pub trait Client: Send + 'static {
    /// Sends the request of this number, which must be admitted.
    fn ask(&mut self, number: u32) -> impl Future<Output = ()> + Send;
}

impl Load {
    /// Of all clients at once.
    pub async fn of(process: u32, clients: Vec<impl Client>, duration: Duration) -> Self {
        let before = processor_nanos(process);
        let start = Instant::now();
        let tasks: Vec<_> = clients
            .into_iter()
            .zip(0..)
            .map(|(mut client, first): (_, u32)| {
                tokio::spawn(async move {
                    let (mut micros, mut number) = (Vec::new(), first);
                    while start.elapsed() < duration {
                        let asked = Instant::now();
                        client.ask(number).await;
                        micros.push(asked.elapsed().as_micros() as u32);
                        number += IN_FLIGHT as u32;
                    }
                    micros
                })
            })
            .collect();
        let mut micros = Vec::new();
        for task in tasks {
            micros.append(&mut task.await.expect("every request is admitted"));
        }
        let elapsed = start.elapsed();
        micros.sort_unstable();
        let nanos = (processor_nanos(process) - before) as f64;
        let server_micros = nanos / 1e3 / micros.len() as f64;
        Self {
            elapsed,
            micros,
            server_micros,
        }
    }

    pub fn per_second(&self) -> f64 {
        self.micros.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// In milliseconds.
    pub fn quantile(&self, percent: usize) -> f64 {
        f64::from(self.micros[self.micros.len() * percent / 100]) / 1e3
    }
}

/// Nanoseconds that the threads of a process have run.
fn processor_nanos(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let nanos = threads.filter_map(|thread| {
        let path = thread.ok()?.path().join("schedstat");
        fs::read_to_string(path)
            .ok()?
            .split(' ')
            .next()?
            .parse::<u64>()
            .ok()
    });
    nanos.sum()
}

pub struct Grpc(RateLimitServiceClient<Channel>);

impl Grpc {
    pub async fn connected(address: &str) -> Vec<Self> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = RateLimitServiceClient::connect(format!("http://{address}")).await;
            let client = client.expect("the server listens");
            clients.extend((0..IN_FLIGHT / CONNECTIONS).map(|_| Self(client.clone())));
        }
        clients
    }
}

impl Client for Grpc {
    async fn ask(&mut self, number: u32) {
        let entry = Entry {
            key: "remote_address".to_owned(),
            value: format!("10.0.{}.{}", number % KEYS / 100, number % 100),
        };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry],
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        };
        let answer = self.0.should_rate_limit(request).await.expect("an answer");
        assert_eq!(answer.get_ref().overall_code(), Code::Ok);
    }
}

/// A connection by HTTP/1.1 that stays open.
pub struct Http(TcpStream);

impl Http {
    pub async fn connected(address: &str) -> Vec<Self> {
        let mut clients = Vec::new();
        for _ in 0..IN_FLIGHT {
            let stream = TcpStream::connect(address)
                .await
                .expect("the proxy listens");
            clients.push(Self(stream));
        }
        clients
    }
}

impl Client for Http {
    async fn ask(&mut self, _: u32) {
        const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: app\r\n\r\n";
        self.0.write_all(REQUEST).await.expect("the proxy reads");
        let mut answer = [0; 2_048];
        let mut length = 0;
        while !answer[..length].ends_with(b"\r\n\r\nhello\n") {
            let read = self.0.read(&mut answer[length..]).await.expect("an answer");
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer[..length]));
            length += read;
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    }
}
