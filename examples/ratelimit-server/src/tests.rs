//! A server as its clients see it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use metrics_exporter_prometheus::PrometheusBuilder;
use throttle_core::{BoxBackend, ManualClock, MemoryBackend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

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
    start(store, settings()).await
}

async fn start(store: Store, settings: Settings) -> Server {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    Server::start(store, settings, metrics).await.unwrap()
}

/// Status, head and body of a request by HTTP/1.1.
async fn http(address: SocketAddr, request: &str, body: &str) -> (u16, String, String) {
    let length = body.len();
    let head = format!(
        "{request}\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all((head + body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        head.to_owned(),
        body.to_owned(),
    )
}

/// A folder of this test, which is not there yet.
fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("ratelimit-server-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
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

#[tokio::test]
async fn json_is_answered_with_200_429_or_400() {
    let server = server().await;
    let body = r#"{"domain":"shop","hits_addend":15,"descriptors":[{"entries":[{"key":"remote_address","value":"203.0.113.9"}]}]}"#;
    let (status, _, answer) = http(server.http, "POST /json HTTP/1.1", body).await;
    assert_eq!(
        (
            status,
            answer.contains(r#""overallCode":"OK""#),
            answer.contains(r#""limitRemaining":5"#)
        ),
        (200, true, true),
        "{answer}"
    );
    let (status, head, answer) = http(server.http, "POST /json HTTP/1.1", body).await;
    assert_eq!(
        (
            status,
            answer.contains(
                r#""code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":20,"unit":"MINUTE"}"#
            )
        ),
        (429, true),
        "{answer}"
    );
    assert!(head.contains("retry-after: 30"), "{head}");
    for wrong in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"domain":"shop"}"#,
        r#"{"domain":"shop","descriptors":[{"hitsAddend":"x"}]}"#,
        r#"{"dommain":"shop"}"#,
    ] {
        assert_eq!(
            http(server.http, "POST /json HTTP/1.1", wrong).await.0,
            400,
            "{wrong}"
        );
    }
    let huge = "[".repeat(5 << 20);
    assert_eq!(
        http(server.http, "POST /json HTTP/1.1", &huge[..1 << 20])
            .await
            .0,
        400,
        "nested too deeply"
    );
}

#[tokio::test]
async fn check_limits_the_request_that_the_proxy_asks_about() {
    let server = server().await;
    let ask = async |query: &str, client: &str, method: &str, uri: &str| {
        let request = format!(
            "GET /check{query} HTTP/1.1\r\nx-forwarded-for: {client}\r\nx-forwarded-method: {method}\r\nx-forwarded-uri: {uri}"
        );
        let (status, head, _) = http(server.http, &request, "").await;
        (status, head)
    };
    for _ in 0..5 {
        assert_eq!(ask("", "203.0.113.9", "POST", "/login?a=b").await.0, 200);
    }
    let (status, head) = ask("", "203.0.113.9", "POST", "/login").await;
    assert!(
        status == 429
            && head.contains("retry-after: 60")
            && head.contains("ratelimit: \"login\";r=0"),
        "{head}"
    );
    let (status, head) = ask("?deny=403", "203.0.113.9", "POST", "/%6cogin").await;
    assert!(status == 403 && head.contains("retry-after: 60"), "{head}");
    assert_eq!(
        ask("", "203.0.113.9", "GET", "/login").await.0,
        200,
        "another method"
    );
    assert_eq!(
        ask("", "203.0.113.10", "POST", "/login").await.0,
        200,
        "another client"
    );
    assert_eq!(ask("", "203.0.113.10", "P(ST", "/").await.0, 400);
    let grpc = "203.0.113.9\r\ncontent-type: application/grpc";
    assert_eq!(
        ask("", grpc, "POST", "/login").await.0,
        429,
        "no word of gRPC gets past the proxy"
    );
}

#[tokio::test]
async fn operators_see_limits_health_and_the_page() {
    let server = server().await;
    let (status, _, body) = http(server.admin, "GET /rlconfig HTTP/1.1", "").await;
    assert!(
        status == 200
            && body
                .contains("shop.remote_address: unit=MINUTE requests_per_unit=20 algorithm=gcra"),
        "{body}"
    );
    for (address, path) in [
        (server.http, "/healthcheck"),
        (server.admin, "/healthcheck"),
        (server.admin, "/metrics"),
        (server.admin, "/page"),
    ] {
        assert_eq!(
            http(address, &format!("GET {path} HTTP/1.1"), "").await.0,
            200,
            "{path}"
        );
    }
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.grpc))
        .unwrap()
        .connect()
        .await
        .unwrap();
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = HealthClient::new(channel.clone())
            .check(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.status().as_str_name(), "SERVING", "{service}");
    }
}

#[tokio::test]
async fn changed_file_is_in_force_and_a_wrong_one_changes_nothing() {
    let folder = folder("reload");
    let file = |count: u32| {
        format!(
            "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: {{ unit: day, requests_per_unit: {count} }}"
        )
    };
    std::fs::write(folder.join("shop.yaml"), file(1)).unwrap();
    let server = start(
        Store::open(&settings()).unwrap(),
        Settings {
            limits: Some(folder.clone()),
            ..settings()
        },
    )
    .await;
    let limits = async || http(server.admin, "GET /rlconfig HTTP/1.1", "").await.2;
    assert!(limits().await.contains("requests_per_unit=1 "));
    std::fs::write(folder.join("shop.yaml"), "domain: [").unwrap();
    std::fs::write(folder.join("README.txt"), "no file of limits").unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(limits().await.contains("requests_per_unit=1 "));
    std::fs::write(folder.join("shop.yaml"), file(2)).unwrap();
    let mut waits = 0;
    while !limits().await.contains("requests_per_unit=2 ") {
        waits += 1;
        assert!(waits < 200, "{}", limits().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn counts_in_memory_outlive_a_restart_with_a_snapshot() {
    let folder = folder("snapshot");
    let settings = Settings {
        snapshot: Some(folder.join("counts")),
        ..settings()
    };
    for left in [2, 1, 0] {
        let server = start(Store::open(&settings).unwrap(), settings.clone()).await;
        // Five together, and no unit comes back for twelve seconds.
        let mut login = request("shop", "path", "/login");
        login.hits_addend = 1 + u32::from(left == 2) * 2;
        login.descriptors[0].entries.extend(
            request("", "remote_address", "203.0.113.9")
                .descriptors
                .remove(0)
                .entries,
        );
        let answer = client(&server)
            .await
            .should_rate_limit(login)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            (answer.overall_code(), answer.statuses[0].limit_remaining),
            (Code::Ok, left)
        );
        server.stop().await.unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn stopped_server_answers_no_more_and_ends() {
    let server = server().await;
    let (grpc, mut idle) = (server.grpc, client(&server).await);
    assert!(
        idle.should_rate_limit(request("shop", "remote_address", ""))
            .await
            .is_ok()
    );
    let began = std::time::Instant::now();
    server.stop().await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "an idle connection holds nothing up"
    );
    assert_eq!(
        idle.should_rate_limit(request("shop", "remote_address", ""))
            .await
            .unwrap_err()
            .code(),
        tonic::Code::Unavailable
    );
    assert!(TcpStream::connect(grpc).await.is_err());
}

#[tokio::test]
async fn store_that_fails_is_unavailable() {
    let url = "redis://127.0.0.1:1";
    let settings = Settings {
        store: url.to_owned(),
        ..settings()
    };
    let server = start(Store::open(&settings).unwrap(), settings).await;
    let error = client(&server)
        .await
        .should_rate_limit(request("shop", "remote_address", ""))
        .await
        .unwrap_err();
    assert_eq!(
        error.code(),
        tonic::Code::Unavailable,
        "Envoy lets UNKNOWN pass"
    );
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"remote_address"}]}]}"#;
    assert_eq!(http(server.http, "POST /json HTTP/1.1", body).await.0, 500);
    // Another kind of request needs no store.
    assert!(
        client(&server)
            .await
            .should_rate_limit(request("shop", "unknown", ""))
            .await
            .is_ok()
    );
}

/// A server of the test's own, which ends with the value.
pub struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub async fn redis() -> (Redis, String) {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let port_text = port.to_string();
    let started = Command::new("redis-server")
        .args([
            "--port",
            port_text.as_str(),
            "--save",
            "",
            "--appendonly",
            "no",
            "--bind",
            "127.0.0.1",
        ])
        .stdout(Stdio::null())
        .spawn();
    let redis = Redis(started.expect("redis-server"));
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (redis, format!("redis://127.0.0.1:{port}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_on_one_redis_share_the_limits() {
    let (_redis, url) = redis().await;
    let settings = Settings {
        store: url,
        // A machine that is busy must not make a decision fail.
        store_milliseconds: 10_000,
        ..settings()
    };
    let mut admitted = 0;
    let servers = [
        start(Store::open(&settings).unwrap(), settings.clone()).await,
        start(Store::open(&settings).unwrap(), settings).await,
    ];
    let mut clients = [client(&servers[0]).await, client(&servers[1]).await];
    // Five together, and no unit comes back for twelve seconds.
    let mut login = request("shop", "path", "/login");
    login.descriptors[0].entries.extend(
        request("", "remote_address", "203.0.113.9")
            .descriptors
            .remove(0)
            .entries,
    );
    for turn in 0..8 {
        let answer = clients[turn % 2]
            .should_rate_limit(login.clone())
            .await
            .unwrap()
            .into_inner();
        admitted += usize::from(answer.overall_code() == Code::Ok);
    }
    assert_eq!(admitted, 5);
    login.descriptors[0].is_negative_hits = true;
    login.descriptors[0].hits_addend =
        Some(envoy_types::pb::google::protobuf::UInt64Value { value: 3 });
    let answer = clients[0]
        .should_rate_limit(login)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.statuses[0].limit_remaining, 3, "they came back");
}

#[tokio::test]
async fn large_and_broken_messages_get_an_error_of_the_protocol() {
    let server = server().await;
    let mut client = client(&server).await;
    let large = |bytes: usize| request("shop", "remote_address", &"a".repeat(bytes));
    assert!(client.should_rate_limit(large(1 << 20)).await.is_ok());
    let error = client.should_rate_limit(large(5 << 20)).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");
    assert!(client.should_rate_limit(large(1)).await.is_ok());
    let mut many = large(1);
    many.descriptors = vec![many.descriptors.remove(0); 10_000];
    let error = client.should_rate_limit(many).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
}

#[tokio::test]
async fn domain_with_a_rule_file_is_decided_by_its_rules() {
    let server = server().await;
    let mut client = client(&server).await;
    let with = |entries: &[(&str, &str)]| {
        let mut whole = request("api", "tenant", "a");
        for (key, value) in entries {
            whole
                .descriptors
                .extend(request("api", key, value).descriptors);
        }
        whole
    };
    let mut admits = async |request| {
        let answer = client.should_rate_limit(request).await?.into_inner();
        Ok::<_, tonic::Status>((
            answer.overall_code() == Code::Ok,
            answer.statuses.len(),
            answer.response_headers_to_add,
        ))
    };
    let mut large = with(&[]);
    large.hits_addend = 90;
    let (is_admitted, statuses, headers) = admits(large.clone()).await.unwrap();
    assert!(
        is_admitted && statuses == 1 && headers.iter().any(|header| header.key == "ratelimit"),
        "{headers:?}"
    );
    let (is_admitted, _, headers) = admits(large).await.unwrap();
    assert!(
        !is_admitted && headers.iter().any(|header| header.key == "retry-after"),
        "{headers:?}"
    );
    for left in (0..5).rev() {
        let export: &[_] = &[
            (":path", "/export?all"),
            (":method", "POST"),
            ("content-type", "application/grpc"),
        ];
        assert!(admits(with(export)).await.unwrap().0, "{left}");
    }
    let (is_admitted, statuses, _) = admits(with(&[("path", "/%65xport"), ("method", "POST")]))
        .await
        .unwrap();
    assert_eq!((is_admitted, statuses), (false, 3));
    for wrong in [
        &[("a b", "c")][..],
        &[("key", "a\nb")],
        &[("path", "a b")],
        &[("method", "")],
    ] {
        let error = admits(with(wrong)).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{wrong:?}");
    }
}
