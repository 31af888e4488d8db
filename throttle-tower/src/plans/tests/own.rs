//! Parameters of an identity's own, from the answer of a lookup to the response.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::backend::{Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{
    Backend, BackendError, BackendErrorKind, ConfigError, Decision, Gcra, LeakyBucket, ManualClock,
    MemoryBackend, PolicySet, Rate, SlidingLog,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::failing_backend::FailingBackend;
use crate::lock::lock;
use crate::plans::{Tier, plans};
use crate::{
    Constant, Header, Limit, LimitReport, OnError, Outcome, ThrottleLayer, all, any, limit,
};

type Answer = Result<Option<Tier>, Infallible>;

/// The rows of a database, by customer.
#[derive(Clone, Default)]
struct Rows(Arc<Mutex<HashMap<String, Row>>>);

#[derive(Clone, Copy)]
enum Row {
    Tier(&'static str),
    /// Units an hour, and the burst.
    Own(u64, u64),
    Log(u64),
    /// A queue that delays.
    Queue(u64),
}

impl Rows {
    fn set(&self, customer: &str, row: Row) {
        lock(&self.0).insert(customer.to_owned(), row);
    }

    fn find(&self, customer: &str) -> Answer {
        Ok(match lock(&self.0).get(customer) {
            None => None,
            Some(Row::Tier(name)) => Some(Tier::named(*name)),
            Some(Row::Own(count, burst)) => {
                Some(Tier::own(Gcra::new(Rate::per_hour(*count)).burst(*burst)))
            }
            Some(Row::Log(count)) => Some(Tier::own(SlidingLog::new(Rate::per_hour(*count)))),
            Some(Row::Queue(count)) => Some(Tier::own(LeakyBucket::new(Rate::per_hour(*count)))),
        })
    }
}

const KEPT: Duration = Duration::from_secs(60);

fn plan(rows: &Rows) -> Limit {
    let rows = rows.clone();
    let per_hour = |count| Gcra::new(Rate::per_hour(count));
    plans("plan", [("free", per_hour(10)), ("pro", per_hour(100))])
        .by(Header::new("x-customer"))
        .lookup(move |customer: String| {
            let found = rows.find(&customer);
            async move { found }
        })
        .cache(1_000, KEPT)
        .unknown("free")
}

type Memory = MemoryBackend<ManualClock>;

fn memory() -> Memory {
    MemoryBackend::builder()
        .clock(ManualClock::default())
        .build()
}

fn layer(limits: impl crate::limit::IntoLimitTree) -> ThrottleLayer<Memory> {
    ThrottleLayer::builder(limits)
        .backend(memory())
        .report_in(crate::ReportIn::Both)
        .build()
        .unwrap()
}

async fn send<B: Backend>(layer: &ThrottleLayer<B>, customer: &str) -> Response<()> {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let request = Request::builder()
        .header("x-customer", customer)
        .body(())
        .unwrap();
    layer.layer(inner).oneshot(request).await.unwrap().map(drop)
}

/// Requests that are admitted until one is refused.
async fn admitted<B: Backend>(layer: &ThrottleLayer<B>, customer: &str) -> usize {
    for admitted in 0..10_000 {
        if send(layer, customer).await.status() == StatusCode::TOO_MANY_REQUESTS {
            return admitted;
        }
    }
    panic!("nothing is refused")
}

fn header<'a>(response: &'a Response<()>, name: &str) -> &'a str {
    response
        .headers()
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

/// Until what is remembered of customers is looked up again.
async fn forget() {
    tokio::time::advance(KEPT).await;
}

#[tokio::test(start_paused = true)]
async fn customers_are_limited_by_their_own_parameters_and_read_them() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(36, 7));
    rows.set("bob", Row::Own(3_600, 40));
    rows.set("pro", Row::Tier("pro"));
    let alone = layer(plan(&rows));
    let composed = layer(all((
        limit("all", Gcra::new(Rate::per_second(1_000))).by(Constant),
        plan(&rows),
    )));
    for (layer, all, left) in [
        (alone, "", ""),
        (composed, "\"all\";q=1000;w=1, ", "\"all\";r=999;t=1, "),
    ] {
        for (customer, policy, status, burst) in [
            ("ada", "\"plan\";q=36;w=3600", "\"plan\";r=6;t=600", 7),
            ("bob", "\"plan\";q=3600;w=3600", "\"plan\";r=39;t=1", 40),
            ("pro", "\"plan\";q=100;w=3600", "\"plan\";r=99;t=36", 100),
            ("eve", "\"plan\";q=10;w=3600", "\"plan\";r=9;t=360", 10),
        ] {
            for again in [false, true] {
                let response = send(&layer, customer).await;
                assert_eq!(response.status(), StatusCode::OK);
                assert_eq!(
                    header(&response, "ratelimit-policy"),
                    format!("{all}{policy}"),
                    "{customer}"
                );
                if !again && customer == "ada" {
                    assert_eq!(header(&response, "ratelimit"), format!("{left}{status}"));
                }
                let report = response.extensions().get::<LimitReport>().unwrap();
                let tier = if burst == 100 {
                    "pro"
                } else if burst == 10 {
                    "free"
                } else {
                    "own"
                };
                assert_eq!(report.tier("plan"), Some(tier));
                let capacity = report
                    .statuses()
                    .find(|(policy, _)| policy.name() == "plan")
                    .unwrap();
                assert_eq!(capacity.0.algorithm().capacity(), burst);
            }
            assert_eq!(
                admitted(&layer, customer).await as u64,
                burst - 2,
                "{customer}"
            );
            let refused = send(&layer, customer).await;
            assert_eq!(
                header(&refused, "ratelimit-policy"),
                format!("{all}{policy}"),
                "{customer}"
            );
            assert!(!header(&refused, "retry-after").is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_parameters_are_a_failed_lookup() {
    let rows = Rows::default();
    let layer = layer(plan(&rows));
    for (customer, row) in [
        ("zero", Row::Own(0, 5)),
        ("none", Row::Own(5, 0)),
        ("long", Row::Own(1, 101)),
        ("delays", Row::Queue(20)),
    ] {
        rows.set(customer, row);
        assert_eq!(
            admitted(&layer, customer).await,
            10,
            "the tier of identities that are not known: {customer}"
        );
    }
    let field = |customer| {
        rows.find(customer)
            .unwrap()
            .unwrap()
            .error()
            .map(|error| error.field())
    };
    assert_eq!(
        (field("zero"), field("none"), field("long")),
        (Some("rate count"), Some("burst"), None)
    );
    assert_eq!(field("delays"), Some("algorithm"));
    rows.set("log", Row::Log(50));
    assert_eq!(
        admitted(&layer, "log").await,
        50,
        "of another algorithm than the tiers"
    );
    rows.set("ada", Row::Own(7, 7));
    assert_eq!(admitted(&layer, "ada").await, 7);
    rows.set("ada", Row::Own(1_000_000, 0));
    forget().await;
    assert_eq!(
        admitted(&layer, "ada").await,
        0,
        "the last known parameters"
    );
    assert_eq!(
        header(&send(&layer, "ada").await, "ratelimit-policy"),
        "\"plan\";q=7;w=3600"
    );
}

/// The customer's own parameters are one member of an `any`: the other one admits when they are
/// used up.
#[tokio::test(start_paused = true)]
async fn law_05_own_parameters_within_any_are_charged_first() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(7, 7));
    let pool = || limit("pool", Gcra::new(Rate::per_hour(20))).by(Constant);
    let layer = layer(all((
        any((plan(&rows), pool())),
        limit("all", Gcra::new(Rate::per_hour(1_000))).by(Constant),
    )));
    assert_eq!(admitted(&layer, "ada").await, 7 + 20);
    assert_eq!(
        admitted(&layer, "eve").await,
        10,
        "the pool is used up, and a tier is not"
    );
    rows.set("ada", Row::Own(9, 9));
    forget().await;
    assert_eq!(admitted(&layer, "ada").await, 2);
    let response = send(&layer, "eve").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// A backend in memory that does not enforce parameters of 40 units.
#[derive(Clone)]
struct Refusing(Memory);

impl Backend for Refusing {
    type Prepared = <Memory as Backend>::Prepared;
    type Decide = std::future::Ready<Result<Decision, BackendError>>;
    type Done = <Memory as Backend>::Done;

    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError> {
        self.0.prepare(set)
    }

    fn set(prepared: &Self::Prepared) -> &PolicySet {
        Memory::set(prepared)
    }

    fn decide(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Self::Decide {
        let is_refused = calls
            .iter()
            .filter_map(Call::own)
            .any(|own| own.capacity() == 40);
        std::future::ready(if is_refused {
            let why = ConfigError::new("capacity", 40, "this backend has no 40");
            Err(BackendError::new(BackendErrorKind::Protocol)
                .uncharged()
                .with_source(why))
        } else {
            Ok(self.0.decide_now(prepared, calls))
        })
    }

    fn settle(&self, prepared: &Arc<Self::Prepared>, receipt: Receipt) -> Self::Done {
        self.0.settle(prepared, receipt)
    }

    fn run(
        &self,
        prepared: &Arc<Self::Prepared>,
        policy: usize,
        step: KeyStep,
    ) -> throttle_core::backend::Answer<Vec<ExceptedKey>> {
        self.0.run(prepared, policy, step)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.0.reset_all(prefix)
    }
}

/// The store is healthy and the row stays wrong until it is corrected, so `on_error` does not
/// apply: the request is refused.
#[tokio::test(start_paused = true)]
async fn parameters_that_the_store_cannot_enforce_are_refused() {
    for rule in [OnError::Open, OnError::Closed, OnError::local(2)] {
        let rows = Rows::default();
        rows.set("ada", Row::Own(40, 40));
        let plan = plan(&rows).on_error(rule);
        let all = limit("all", Gcra::new(Rate::per_hour(1_000)))
            .by(Constant)
            .on_error(rule);
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&heard);
        let layer = ThrottleLayer::builder(crate::all((all, plan)))
            .backend(Refusing(memory()))
            .on_decision(move |event| {
                if let Outcome::FailedClosed(error) = event.outcome {
                    lock(&log).push(error.to_string());
                }
            })
            .build()
            .unwrap();
        for _ in 0..3 {
            assert_eq!(
                send(&layer, "ada").await.status(),
                StatusCode::SERVICE_UNAVAILABLE,
                "{rule:?}"
            );
        }
        let heard = std::mem::take(&mut *lock(&heard));
        assert!(
            heard.len() == 3
                && heard
                    .iter()
                    .all(|error| error.ends_with("; nothing was charged")),
            "{heard:?}"
        );
        rows.set("ada", Row::Own(20, 20));
        forget().await;
        assert_eq!(admitted(&layer, "ada").await, 20, "{rule:?}");
        assert_eq!(admitted(&layer, "eve").await, 10, "tiers are decided");
    }
}

#[tokio::test(start_paused = true)]
async fn own_parameters_use_the_common_share_while_the_store_fails() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(20, 20));
    rows.set("bob", Row::Own(30, 30));
    let all = limit("all", Gcra::new(Rate::per_hour(5)).burst(5))
        .by(Constant)
        .on_error(OnError::local(1));
    let layer = ThrottleLayer::builder(crate::all((all, plan(&rows).on_error(OnError::local(1)))))
        .backend(FailingBackend)
        .build()
        .unwrap();
    let mut admitted = [0; 3];
    for (admitted, customer) in admitted.iter_mut().zip(["ada", "bob", "eve"]) {
        for _ in 0..3 {
            *admitted += usize::from(send(&layer, customer).await.status() == StatusCode::OK);
        }
    }
    assert_eq!(admitted, [3, 2, 0]);
}

/// A table may have a thousand wrong rows, and each is looked up again every second.
#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn parameters_that_are_not_used_are_logged_once_a_minute() {
    use tracing_subscriber::layer::SubscriberExt;

    let log = super::Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let rows = Rows::default();
    let layer = ThrottleLayer::builder(plan(&rows).on_error(OnError::Open))
        .backend(Refusing(memory()))
        .build()
        .unwrap();
    for (customer, row) in [
        ("zero", Row::Own(0, 5)),
        ("none", Row::Own(5, 0)),
        ("long", Row::Own(1, 101)),
    ] {
        rows.set(customer, row);
    }
    rows.set("refused", Row::Own(40, 40));
    let mut logged = Vec::new();
    for _ in 0..2 {
        for customer in ["zero", "none", "long"] {
            assert_eq!(send(&layer, customer).await.status(), StatusCode::OK);
        }
        for _ in 0..5 {
            assert_eq!(
                send(&layer, "refused").await.status(),
                StatusCode::SERVICE_UNAVAILABLE
            );
        }
        logged.extend(std::mem::take(&mut *lock(&log.0)));
        forget().await;
    }
    let logged: Vec<_> = logged
        .iter()
        .filter(|text| text.contains("parameters that"))
        .collect();
    let expected = [
        ("rate count is 0: ", None),
        ("capacity is 40: ", None),
        ("rate count is 0: ", Some("; 2 more such causes")),
        ("capacity is 40: ", Some("; 4 more such causes")),
    ];
    assert_eq!(logged.len(), expected.len(), "{logged:#?}");
    for (text, (why, more)) in logged.iter().zip(expected) {
        assert!(
            text.contains(why) && text.contains(more.unwrap_or_default()),
            "{logged:#?}"
        );
        assert_eq!(text.contains(" more such "), more.is_some(), "{logged:#?}");
    }
}
