//! Exporters of OpenTelemetry. Their protocol wants a `RESOURCE_EXHAUSTED` to be retried if and
//! only if it has a `RetryInfo`. That of Rust does so, and that of Python does not look for it
//! there.

use std::net::SocketAddr;
use std::time::Duration;

use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::trace::SpanExporter as _;
use serde_json::json;
use throttle_extra::sdk::{self, Language};

use super::server::{Server, Throttle};

fn exporter(address: SocketAddr, client: &str) -> SpanExporter {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-client", client.parse().unwrap());
    let builder = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(format!("http://{address}"));
    builder.with_metadata(metadata).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn exporter_of_rust_retries_only_where_there_is_retry_info() {
    let server = Server::start(Throttle::BeforeTonicWeb).await;
    let soon = exporter(server.address, "soon/rust");
    for _ in 0..3 {
        // A batch of no spans is sent, too.
        soon.export(Vec::new()).await.unwrap();
    }
    server.waited_as_told("soon/rust");

    let error = exporter(server.address, "never/rust")
        .export(Vec::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ResourceExhausted"), "{error}");
    assert_eq!(server.seen("never/rust").len(), 1, "no second try");
}

/// It retries after about 1, 2 and 4 seconds, within its timeout: whatever a refusal says, and also
/// where no wait helps.
#[tokio::test(flavor = "multi_thread")]
async fn exporter_of_python_retries_at_its_own_times() {
    let server = Server::start(Throttle::BeforeTonicWeb).await;
    let address = server.address.to_string();
    let cases = [
        ("soon/python", "2", json!([true, true])),
        ("hour/python", "2", json!([true, false])),
        ("never/python", "1", json!([false])),
    ];
    for (client, calls, succeeded) in cases {
        let said = sdk::json(
            Language::Python,
            "otlp_exporter.py",
            &[&address, client, calls],
        )
        .await;
        assert_eq!(said, succeeded, "{client}");
        let seen = server.seen(client);
        let pair = seen.windows(2).find(|pair| pair[0].refused);
        let Some([refusal, again]) = pair else {
            panic!("{client} did not retry: {seen:?}")
        };
        let waited = again.arrived - refusal.answered;
        println!("{client}: stated {:?}, waited {waited:?}", refusal.pushback);
        assert!(
            waited >= Duration::from_millis(800),
            "{client}: {waited:?} in {seen:?}"
        );
    }
}
