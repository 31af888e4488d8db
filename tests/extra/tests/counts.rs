//! The counters of a server equal what its clients have counted themselves, exactly.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use reqwest::Client;
use throttle_extra::series::Series;
use throttle_extra::web;
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Server;
use throttle_tower::throttle_core::Backend;
use throttle_tower::{
    DecidedBy, Gcra, Header, LimitReport, Metrics, OnError, Rate, Reason, ThrottleBuilder,
    ThrottleLayer, limit,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The recorder of this process. Each test has layers with names of its own.
fn metrics() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let recorder = PrometheusBuilder::new().set_buckets(&[0.01, 1.0]).unwrap();
        recorder.install_recorder().unwrap()
    })
}

fn recorded() -> Series {
    Series::read(&metrics().render())
}

/// What a client has counted, by series.
#[derive(Default)]
struct Tally(BTreeMap<String, u64>);

impl Tally {
    fn count(&mut self, series: String, by: u64) {
        if by > 0 {
            *self.0.entry(series).or_default() += by;
        }
    }

    fn add(&mut self, other: Self) {
        other
            .0
            .into_iter()
            .for_each(|(series, count)| self.count(series, count));
    }

    fn sum(&self, part: &str) -> u64 {
        self.0
            .iter()
            .filter(|(series, _)| series.contains(part))
            .map(|(_, count)| count)
            .sum()
    }

    /// Waits until every series that this tally has is recorded with its value, and until there is
    /// no other of these metrics of the layer: counters reach the recorder a moment later.
    async fn must_equal(&self, layer: &str) {
        let label = format!("layer={layer:?}");
        web::until(Duration::from_secs(5), "equal counts", async || {
            let recorded = recorded();
            let of_layer = recorded.names().into_iter().filter(|series| {
                series.contains(&label)
                    && COUNTED
                        .iter()
                        .any(|metric| series.split('{').next() == Some(metric))
            });
            let counts = of_layer.map(|series| (recorded.get(&series), series));
            let found: BTreeMap<String, u64> = counts
                .filter(|(count, _)| *count > 0)
                .map(|(count, series)| (series, count))
                .collect();
            let counted = &self.0;
            if found == *counted {
                Ok(())
            } else {
                Err(format!(
                    "recorded {found:#?}, counted \
                {counted:#?}"
                ))
            }
        })
        .await;
    }
}

/// The metrics that a client can count itself.
const COUNTED: [&str; 5] = [
    "throttle_requests_total",
    "throttle_decisions_total",
    "throttle_binding_total",
    "throttle_units_total",
    "throttle_degraded_total",
];

/// What the decision was, written into the response for the client: for each policy its result and
/// what it was charged, which policy was the binding one, what decided, and why.
fn headers_of(report: &LimitReport) -> HeaderMap {
    let statuses = report.statuses().map(|(policy, status)| {
        let result = match status {
            status if status.is_violated() => "refused",
            // What this process decides by its share says nothing of the whole limit.
            status if status.decided_by() != DecidedBy::Store => "admitted",
            status if status.remaining() <= policy.algorithm().capacity() / 5 => "near",
            _ => "admitted",
        };
        let charged = if report.decision().is_admitted() {
            status.charged()
        } else {
            0
        };
        format!("{} {result} {charged}", policy.name())
    });
    let decision = report.decision();
    let mut headers = HeaderMap::new();
    let mut tell = |name: &'static str, value: &str| {
        headers.insert(name, HeaderValue::from_str(value).unwrap())
    };
    tell("x-statuses", &statuses.collect::<Vec<_>>().join(","));
    tell(
        "x-binding",
        report.binding().map_or("", |policy| policy.name()),
    );
    tell("x-by", decision.decided_by().label());
    tell("x-why", decision.degraded().map_or("", |why| why.label()));
    headers
}

fn telling<B: Backend>(builder: ThrottleBuilder<B>) -> ThrottleBuilder<B> {
    builder.response(|refusal| {
        let mut response = refusal.default_response();
        match refusal.reason {
            Reason::Quota(report) => response.headers_mut().extend(headers_of(report)),
            Reason::Store(why, _) => {
                response
                    .headers_mut()
                    .insert("x-by", HeaderValue::from_static("closed"));
                response
                    .headers_mut()
                    .insert("x-why", HeaderValue::from_static(why.label()));
            }
            _ => {}
        }
        response
    })
}

/// Counts what a response says.
fn tally(layer: &str, status: StatusCode, headers: &HeaderMap) -> Tally {
    let mut tally = Tally::default();
    let text = |name: &str| {
        headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    };
    let (by, why) = (text("x-by"), text("x-why"));
    let outcome = match (status, by) {
        (StatusCode::SERVICE_UNAVAILABLE, "closed") => "failed_closed",
        (StatusCode::TOO_MANY_REQUESTS, _) => "refused",
        (_, "open") => "failed_open",
        _ => "admitted",
    };
    let layer = format!("layer={layer:?}");
    tally.count(
        format!("throttle_requests_total{{{layer},outcome={outcome:?}}}"),
        1,
    );
    if !why.is_empty() {
        tally.count(
            format!("throttle_degraded_total{{decided_by={by:?},{layer},why={why:?}}}"),
            1,
        );
    }
    if outcome == "refused" {
        tally.count(
            format!(
                "throttle_binding_total{{{layer},policy={:?}}}",
                text("x-binding")
            ),
            1,
        );
    }
    for entry in text("x-statuses")
        .split(',')
        .filter(|entry| !entry.is_empty())
    {
        let [policy, result, charged] = entry.split(' ').collect::<Vec<_>>().try_into().unwrap();
        tally.count(
            format!("throttle_decisions_total{{{layer},policy={policy:?},result={result:?}}}"),
            1,
        );
        let charged: u64 = charged.parse().unwrap();
        tally.count(
            format!("throttle_units_total{{kind=\"charged\",{layer},policy={policy:?}}}"),
            charged,
        );
    }
    tally
}

async fn respond(report: LimitReport) -> HeaderMap {
    headers_of(&report)
}

/// Serves layers at paths of their names.
async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn limited<B: Backend>(name: &str, builder: ThrottleBuilder<B>) -> Router {
    let builder = telling(builder).observe(Metrics::new(name));
    Router::new()
        .route(&format!("/{name}/{{wanted}}"), get(respond))
        .layer(builder.build().unwrap())
}

async fn ask(
    client: &Client,
    url: &str,
    layer: &str,
    wanted: &str,
    key: &str,
    cost: u64,
) -> (StatusCode, Tally) {
    let request = client
        .get(format!("{url}/{layer}/{wanted}"))
        .header("x-api-key", key)
        .header("x-cost", cost);
    let response = request.send().await.unwrap();
    (
        response.status(),
        tally(layer, response.status(), response.headers()),
    )
}

fn cost(parts: &axum::http::request::Parts) -> u64 {
    parts
        .headers
        .get("x-cost")
        .and_then(|cost| cost.to_str().ok()?.parse().ok())
        .unwrap_or(1)
}

fn key() -> Header {
    Header::new("x-api-key")
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_server_whose_redis_is_killed_find_what_they_counted() {
    metrics();
    let server = Server::start();
    let redis = RedisBackend::builder(Single::new(&server.url()).unwrap())
        .metrics("counted")
        .build()
        .unwrap();
    let layer = |name: &str, burst: u64, on_error: OnError| {
        let policy = limit(
            name.to_owned(),
            Gcra::new(Rate::per_day(burst)).burst(burst),
        )
        .by(key())
        .on_error(on_error);
        limited(name, ThrottleLayer::builder(policy).backend(redis.clone()))
    };
    let refunds = limit("refunds", Gcra::new(Rate::per_day(500)).burst(500))
        .by(key())
        .cost(cost)
        .refund_if(limit::successful);
    let refunds = ThrottleLayer::builder(refunds)
        .on_error(OnError::Closed)
        .backend(redis.clone());
    let app = layer("local", 100, OnError::local(2))
        .merge(layer("open", 100_000, OnError::Open))
        .merge(layer("closed", 100_000, OnError::Closed))
        .merge(limited("refunds", refunds));
    let url = serve(app).await;

    let client = web::client();
    let mut refunded = Tally::default();
    for request in 0..50 {
        let (status, tally) = ask(&client, &url, "refunds", "right", "ada", 1 + request % 3).await;
        refunded.add(tally);
        if status == StatusCode::OK {
            let series =
                r#"throttle_units_total{kind="refunded",layer="refunds",policy="refunds"}"#;
            refunded.count(series.to_owned(), 1 + request % 3);
        }
    }
    assert!(refunded.sum("refunded") > 90, "Redis answers");
    refunded.must_equal("refunds").await;

    let ended = std::sync::Arc::new(AtomicU64::new(0));
    let layers = ["local", "open", "closed"];
    let mut clients = JoinSet::new();
    for number in 0..6 {
        let (client, url, ended) = (web::client(), url.clone(), std::sync::Arc::clone(&ended));
        clients.spawn(async move {
            let (layer, mut all) = (layers[number % 3], Tally::default());
            while ended.load(Ordering::SeqCst) == 0 {
                let key = format!("key-{number}-{}", all.sum("throttle_requests_total") % 7);
                all.add(ask(&client, &url, layer, "right", &key, 1).await.1);
                sleep(Duration::from_millis(2)).await;
            }
            (layer, all)
        });
    }
    sleep(Duration::from_millis(1_500)).await;
    server.kill();
    sleep(Duration::from_millis(1_500)).await;
    server.restart();
    sleep(Duration::from_millis(3_000)).await;
    ended.store(1, Ordering::SeqCst);
    let mut counted = BTreeMap::from(layers.map(|layer| (layer, Tally::default())));
    while let Some(done) = clients.join_next().await {
        let (layer, tally) = done.unwrap();
        counted.get_mut(layer).unwrap().add(tally);
    }

    for (layer, tally) in &counted {
        tally.must_equal(layer).await;
    }
    let recorded = recorded();
    let everything = refunded.sum("throttle_requests_total")
        + counted
            .values()
            .map(|tally| tally.sum("throttle_requests_total"))
            .sum::<u64>();
    for (layer, tally) in &counted {
        let requests = tally.sum("throttle_requests_total");
        let degraded = tally.sum("throttle_degraded_total");
        assert!(
            degraded > 20 && requests - degraded > 100,
            "{layer}: {degraded} of {requests} without Redis"
        );
        let decided = recorded.sum(
            "throttle_store_seconds_count",
            &[("layer", layer), ("result", "decided")],
        );
        assert_eq!(decided, requests - degraded, "{layer}");
        assert_eq!(
            recorded.sum("throttle_store_seconds_count", &[("layer", layer)]),
            requests,
            "{layer}"
        );
    }
    assert!(
        counted["local"].sum("outcome=\"refused\"") > 20,
        "the load shows refusals by a share"
    );
    assert!(counted["open"].sum("outcome=\"failed_open\"") > 20);
    assert!(counted["closed"].sum("outcome=\"failed_closed\"") > 20);

    // The backend's own counters say the same.
    let backend = [("backend", "counted")];
    let of = |name| recorded.sum(name, &backend);
    let failed = of("throttle_redis_failed_decisions_total");
    assert_eq!(of("throttle_redis_decisions_total") + failed, everything);
    let degraded: u64 = [&refunded]
        .into_iter()
        .chain(counted.values())
        .map(|t| t.sum("throttle_degraded_total"))
        .sum();
    assert_eq!(failed, degraded);
    assert!(of("throttle_redis_breaker_openings_total") >= 1);
    assert_eq!(
        recorded.sum(
            "throttle_redis_breakers",
            &[("backend", "counted"), ("state", "closed")]
        ),
        1
    );
}
