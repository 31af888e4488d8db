//! A server as its clients see it.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use throttle_core::{BoxBackend, ManualClock, MemoryBackend};
use tonic::transport::Channel;

use crate::server::Server;
use crate::settings::Settings;
use crate::store::Store;

/// The settings of the folder, on free ports.
fn settings() -> Settings {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/throttle.toml");
    let settings = Settings::read(file.as_ref(), std::iter::empty()).unwrap();
    let free = "127.0.0.1:0".parse().unwrap();
    Settings {
        grpc: free,
        http: free,
        admin: free,
        ..settings
    }
}

/// A server on a clock that stands still.
async fn server() -> Server {
    let memory = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    let store = Store {
        backend: BoxBackend::new(memory),
        saver: None,
    };
    Server::on(store, settings()).await.unwrap()
}

async fn client(server: &Server) -> RateLimitServiceClient<Channel> {
    RateLimitServiceClient::connect(format!("http://{}", server.grpc))
        .await
        .unwrap()
}

fn request(domain: &str, key: &str, value: &str) -> RateLimitRequest {
    let entry = Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_together_are_admitted_as_often_as_the_limit_says() {
    let server = server().await;
    let client = client(&server).await;
    let calls = (0..4).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..25 {
                let answer = client
                    .should_rate_limit(request("shop", "remote_address", "203.0.113.9"))
                    .await
                    .unwrap();
                admitted += usize::from(answer.into_inner().overall_code() == Code::Ok);
            }
            admitted
        })
    });
    let mut admitted = 0;
    for call in calls.collect::<Vec<_>>() {
        admitted += call.await.unwrap();
    }
    assert_eq!(admitted, 20);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn error_of_the_protocol_leaves_the_connection_usable() {
    let server = server().await;
    let mut client = client(&server).await;
    let error = client
        .should_rate_limit(request("", "remote_address", ""))
        .await
        .unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert!(
        client
            .should_rate_limit(request("shop", "remote_address", ""))
            .await
            .is_ok()
    );
}
