//! Clients by gRPC-Web, before and behind what makes gRPC of it. They have no retry policies.

use serde_json::{Value, json};
use throttle_extra::browser::Browser;
use throttle_extra::sdk::{self, Language};

use super::server::{Server, Throttle};

const PLACES: [Throttle; 2] = [Throttle::BeforeTonicWeb, Throttle::AfterTonicWeb];

fn second_call_is_refused(said: &Value, place: Throttle) {
    assert_eq!(said[0]["code"], 0, "{place:?}: {said}");
    let refusal = (&said[1]["code"], &said[1]["message"]);
    assert_eq!(
        refusal,
        (&json!(8), &json!("quota exceeded: hour")),
        "{place:?}: {said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_web_reads_why_it_is_refused() {
    for place in PLACES {
        let server = Server::start(place).await;
        let url = format!("http://{}", server.address);
        let said = sdk::json(
            Language::JavaScript,
            "connect_client.mjs",
            &[&url, "hour/connect-web"],
        )
        .await;
        second_call_is_refused(&said, place);
        let types = json!([
            "google.rpc.RetryInfo",
            "google.rpc.QuotaFailure",
            "google.rpc.ErrorInfo"
        ]);
        assert_eq!(said[1]["types"], types, "{place:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn page_with_grpc_web_reads_why_it_is_refused() {
    let browser = Browser::start().await;
    for place in PLACES {
        let server = Server::start(place).await;
        browser.open(&format!("http://{}/", server.address)).await;
        let said = browser
            .run(include_str!("../../sdks/grpc_web_page.js"))
            .await;
        second_call_is_refused(&said, place);
        let seen = server.seen("hour/grpc-web");
        assert_eq!(
            said[1]["details"].as_str(),
            seen[1].details.as_deref(),
            "{place:?}: {said}"
        );
    }
    browser.quit().await;
}
