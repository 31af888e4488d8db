use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use tower::ServiceExt;

use super::*;

/// The recorder can be installed once, so there is one test that needs it.
#[tokio::test]
async fn metrics_and_page_show_what_the_limits_did() {
    let app = build(None).unwrap();
    for path in ["/report", "/export?rows=80", "/pay"] {
        assert_eq!(get(&app, path).await.0, StatusCode::OK, "{path}");
    }
    let mut refused = 0;
    for _ in 0..100 {
        let (status, _) = get(&app, "/").await;
        refused += u64::from(status == StatusCode::TOO_MANY_REQUESTS);
    }
    // Three of the burst of forty are used, and a unit comes back every 50 ms.
    assert!((20..=63).contains(&refused), "{refused}");

    // Longer than what runs in the background takes.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_, metrics) = get(&app, "/metrics").await;
    for line in [
        "# TYPE throttle_requests_total counter".to_owned(),
        "# TYPE throttle_queue_seconds histogram".to_owned(),
        format!(r#"throttle_requests_total{{layer="api",outcome="refused"}} {refused}"#),
        format!(r#"throttle_binding_total{{layer="api",policy="per-key"}} {refused}"#),
        r#"throttle_plan_lookups_total{layer="api",policy="per-plan",result="found"} 1"#.to_owned(),
        r#"throttle_shape_calls_total{layer="payments",outcome="sent"} 1"#.to_owned(),
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "no {line} in\n{metrics}"
        );
    }

    assert_eq!(get(&app, "/throttle").await.0, StatusCode::OK);
    let (status, data) = get(&app, "/throttle/data.json").await;
    assert_eq!(status, StatusCode::OK);
    assert!(data.contains(r#""name":"per-plan""#), "{data}");

    let known: BTreeSet<&str> = names(&metrics);
    let used = names(include_str!("../grafana/throttle.json"))
        .into_iter()
        .chain(names(include_str!("../alerts.yml")));
    // A store that can fail has these.
    let of_a_store = ["throttle_redis_", "throttle_store_", "throttle_degraded_"];
    for name in used.filter(|name| !of_a_store.iter().any(|store| name.starts_with(store))) {
        assert!(
            known.contains(name),
            "{name} is in the dashboard or the alerts, and not in the metrics"
        );
    }
}

async fn get(app: &Router, path: &str) -> (StatusCode, String) {
    let mut request = Request::get(path)
        .header("x-api-key", "key_pro_me")
        .body(Body::empty())
        .unwrap();
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 40_000))));
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("throttle_")).collect()
}
