use std::convert::Infallible;
#[cfg(feature = "metrics")]
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "metrics")]
use std::task::{Context, Waker};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::backend::{
    Answer, BackendError, BackendErrorKind, Call, ExceptedKey, KeyStep, Receipt,
};
use throttle_core::{
    Backend, BoxBackend, Clock, ConfigError, Decision, FixedWindow, ManualClock, MemoryBackend,
    MemorySet, PolicySet, Rate, Timestamp,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::client_ip::ClientIp;
use crate::extract::{Extension, PeerAddr};
use crate::failing_backend::FailingBackend;
use crate::limit::{Ban, IntoLimitTree, Limit, all, any, limit, successful};
use crate::{
    Constant, Header, KeyExtractor, LimitReport, OnError, Route, ThrottleLayer, TrustedProxies,
};

/// Five an hour for each address, and a ban of 10 minutes after three strikes.
fn login() -> Limit {
    limit("login", FixedWindow::new(Rate::per_hour(5)))
        .by(ClientIp::peer())
        .ban(Ban::after(3))
}

/// The response to a login from an address, which the service answers with this status.
async fn from<B: Backend>(layer: &ThrottleLayer<B>, host: u8, status: u16) -> Response<()> {
    let service = service_fn(async |request: Request<()>| {
        let mut response = Response::new(());
        *response.status_mut() = *request
            .extensions()
            .get()
            .expect("the status to answer with");
        Ok::<_, Infallible>(response)
    });
    let request = Request::get("/").extension(PeerAddr(IpAddr::from([203, 0, 113, host])));
    let request = request
        .extension(StatusCode::from_u16(status).unwrap())
        .body(())
        .unwrap();
    layer
        .layer(service)
        .oneshot(request)
        .await
        .unwrap()
        .map(drop)
}

fn is_banned(response: &Response<()>) -> bool {
    response
        .extensions()
        .get::<LimitReport>()
        .is_some_and(|report| report.statuses().any(|(_, status)| status.is_banned()))
}

async fn statuses<B: Backend>(
    layer: &ThrottleLayer<B>,
    host: u8,
    answer: u16,
    requests: usize,
) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..requests {
        statuses.push(from(layer, host, answer).await.status().as_u16());
    }
    statuses
}

fn on(
    clock: &ManualClock,
    limits: impl IntoLimitTree,
) -> ThrottleLayer<MemoryBackend<ManualClock>> {
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    ThrottleLayer::builder(limits)
        .report_in(crate::ReportIn::Both)
        .backend(store)
        .build()
        .unwrap()
}

#[tokio::test]
async fn client_that_does_not_stop_is_banned_and_another_is_not() {
    let clock = ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000));
    let layer = on(&clock, login());
    assert_eq!(
        statuses(&layer, 1, 200, 8).await,
        [200, 200, 200, 200, 200, 429, 429, 429]
    );
    let hour = 3_600_000_000;
    let window_end = hour - clock.now().as_micros() % hour;
    // The window would begin anew before the end of the ban.
    clock.set(
        clock
            .now()
            .after_micros((window_end - 60_000_000).cast_unsigned()),
    );
    assert!(
        !is_banned(&from(&layer, 1, 200).await),
        "the first ban is over"
    );
    assert_eq!(statuses(&layer, 1, 200, 2).await, [429, 429]);
    for (ahead, wait) in [(0, "1200"), (90, "1110"), (1_199, "1")] {
        clock.set(clock.now().after_micros(ahead * 1_000_000));
        let banned = from(&layer, 1, 200).await;
        assert!(is_banned(&banned));
        assert_eq!(banned.headers()["retry-after"], wait);
        clock.set(Timestamp::from_micros(
            clock.now().as_micros() - (ahead * 1_000_000).cast_signed(),
        ));
    }
    assert_eq!(from(&layer, 2, 200).await.status(), 200);
    clock.set(clock.now().after_micros(1_200_000_000));
    assert_eq!(from(&layer, 1, 200).await.status(), 200);
}

#[tokio::test]
async fn responses_are_strikes_where_a_rule_says_so_whatever_is_charged() {
    let clock = ManualClock::default();
    let failed = login()
        .refund_if(successful)
        .strike_if(|status, _| status == 401)
        .strike_if(|status, _| status == 403);
    let layer = on(&clock, failed);
    assert_eq!(statuses(&layer, 1, 200, 9).await, [200; 9]);
    assert_eq!(
        [
            from(&layer, 1, 401).await.status(),
            from(&layer, 1, 403).await.status()
        ],
        [401, 403]
    );
    assert_eq!(statuses(&layer, 1, 200, 1).await, [200], "two strikes");
    assert_eq!(statuses(&layer, 1, 401, 2).await, [401, 429]);
    assert!(is_banned(&from(&layer, 1, 200).await));
}

#[tokio::test]
async fn ban_made_while_the_clock_was_ahead_is_shortened_to_the_longest() {
    let clock = ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000));
    let (layer, now, day) = (
        on(&clock, login()),
        clock.now(),
        Duration::from_secs(86_400),
    );
    clock.set(now + 365 * day);
    assert_eq!(
        statuses(&layer, 1, 200, 8).await,
        [200, 200, 200, 200, 200, 429, 429, 429]
    );
    for (at, expected) in [
        (now, true),
        (now + (day - Duration::from_secs(1)), true),
        (now + day, false),
    ] {
        clock.set(at);
        assert_eq!(is_banned(&from(&layer, 1, 200).await), expected);
    }
}

#[tokio::test]
async fn refusal_of_an_overflow_bucket_is_no_strike() {
    let store = MemoryBackend::builder()
        .clock(ManualClock::default())
        .max_keys(1)
        .build();
    let layer = ThrottleLayer::builder(login())
        .report_in(crate::ReportIn::Both)
        .backend(store)
        .build()
        .unwrap();
    let mut refused = 0;
    for host in 0..200 {
        let response = from(&layer, host, 200).await;
        refused += usize::from(response.status() == 429);
    }
    // A strike of a key without a slot of its own would fail.
    assert!(refused > 0 && layer.settlements().failed == 0);
}

#[tokio::test]
async fn refusal_by_another_limit_is_no_strike() {
    let other = limit("other", FixedWindow::new(Rate::per_hour(1))).by(Constant);
    let layer = on(&ManualClock::default(), all((login(), other)));
    assert_eq!(
        statuses(&layer, 1, 200, 9)
            .await
            .iter()
            .filter(|status| **status == 429)
            .count(),
        8
    );
    let refused = from(&layer, 1, 200).await;
    let report: &LimitReport = refused.extensions().get().unwrap();
    assert!(report.violated().eq(["other"]) && !is_banned(&refused));
}

#[test]
fn layer_with_a_ban_that_cannot_be_is_not_built() {
    let by =
        |extractor: Arc<dyn KeyExtractor>| login_by(extractor).ban(Ban::after(3)).into_limit_tree();
    let header = || Header::new("x-user");
    let error = |limits| {
        ThrottleLayer::new(limits)
            .map(drop)
            .err()
            .map(|error: ConfigError| error.to_string())
    };
    let hops = |hops| ClientIp::x_forwarded_for_hops(hops).unwrap();
    for spoofable in [
        Arc::new(header()) as Arc<dyn KeyExtractor>,
        Arc::new(Constant),
        Arc::new(Route),
        Arc::new(hops(1)),
        Arc::new(ClientIp::fly_io()),
        Arc::new(ClientIp::x_forwarded_for(
            TrustedProxies::danger_any_width(["10.0.0.1", "0.0.0.0/0"]).unwrap(),
        )),
        Arc::new(
            ClientIp::header(
                "x-real-ip",
                TrustedProxies::danger_any_width(["::/0"]).unwrap(),
            )
            .unwrap(),
        ),
        Arc::new((header(), Constant)),
        Arc::new(ClientIp::peer().or(header())),
    ] {
        let shown = spoofable.describe();
        let message = error(by(spoofable)).unwrap_or_else(|| panic!("{shown} is accepted"));
        assert!(
            message.starts_with(&format!(
                "policy \"login\": ban is by {shown}: one client could"
            )),
            "{message}"
        );
    }
    for right in [
        by(Arc::new(ClientIp::peer())),
        by(Arc::new(ClientIp::x_forwarded_for(
            TrustedProxies::new(["10.0.0.0/8"]).unwrap(),
        ))),
        by(Arc::new(header().accept(|_| true))),
        by(Arc::new((ClientIp::peer(), header()))),
        by(Arc::new(Extension::by(|user: &u64| *user))),
        login_by(Arc::new(header()))
            .ban(Ban::after(3).even_if_spoofable())
            .into_limit_tree(),
    ] {
        assert_eq!(error(right), None);
    }
    for (wrong, message) in [
        (
            login().ban(Ban::after(0)).into_limit_tree(),
            "policy \"login\": after is 0: it must be between 1 and 1000000",
        ),
        (
            any([login()]),
            "policy \"login\": ban is in an any: another member",
        ),
        (
            any([all([login()])]),
            "policy \"login\": ban is in an any: another member",
        ),
        (
            login_by(Arc::new(ClientIp::peer()))
                .strike_if(|_, _| true)
                .into_limit_tree(),
            "policy \"login\": strike_if is without a ban: strikes count toward a ban; add one",
        ),
    ] {
        let refused = error(wrong).unwrap_or_default();
        assert!(refused.starts_with(message), "{refused}");
    }
}

fn login_by(extractor: Arc<dyn KeyExtractor>) -> Limit {
    limit("login", FixedWindow::new(Rate::per_hour(5))).by(extractor)
}

/// A store that decides the first requests, fails for some, and then returns.
#[derive(Clone)]
struct Failing {
    store: MemoryBackend<ManualClock>,
    asked: Arc<AtomicUsize>,
    struck: Arc<AtomicUsize>,
    fails: std::ops::Range<usize>,
}

impl Failing {
    fn of(clock: &ManualClock, fails: std::ops::Range<usize>) -> Self {
        let store = MemoryBackend::builder().clock(clock.clone()).build();
        Self {
            store,
            asked: Arc::default(),
            struck: Arc::default(),
            fails,
        }
    }
}

impl Backend for Failing {
    type Prepared = MemorySet;
    type Decide = std::future::Ready<Result<Decision, BackendError>>;
    type Done = <MemoryBackend as Backend>::Done;

    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        self.store.prepare(set)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        MemoryBackend::<ManualClock>::set(prepared)
    }

    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        if self
            .fails
            .contains(&self.asked.fetch_add(1, Ordering::Relaxed))
        {
            return std::future::ready(Err(BackendError::new(BackendErrorKind::Unavailable)));
        }
        self.store.decide(prepared, calls)
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Self::Done {
        self.store.settle(prepared, receipt)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.store.reset_all(prefix)
    }

    fn run(
        &self,
        prepared: &Arc<MemorySet>,
        policy: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        if let KeyStep::Strike(..) = step {
            self.struck.fetch_add(1, Ordering::Relaxed);
        }
        self.store.run(prepared, policy, step)
    }

    fn has_exceptions(&self) -> bool {
        true
    }
}

#[test]
fn limit_with_a_ban_is_refused_on_a_backend_that_cannot_ban() {
    let limits = || login().on_error(OnError::Closed);
    let layer = || ThrottleLayer::builder(limits());
    let unsupported = [
        layer().backend(FailingBackend).build().map(drop),
        layer()
            .backend(BoxBackend::new(FailingBackend))
            .build()
            .map(drop),
    ];
    for error in unsupported.map(Result::unwrap_err) {
        assert_eq!(
            (error.policy(), error.field(), error.value()),
            (Some("login"), "ban", "unsupported")
        );
        let text = error.to_string();
        assert!(
            text.contains("would never ban; remove the ban, or use a"),
            "{text}"
        );
    }
    let failing = Failing::of(&ManualClock::default(), 0..0);
    assert!(
        layer()
            .backend(BoxBackend::new(failing.clone()))
            .build()
            .is_ok()
    );
    assert!(layer().backend(failing).build().is_ok());
    let without = limit("login", FixedWindow::new(Rate::per_hour(5))).by(ClientIp::peer());
    let without = ThrottleLayer::builder(without.on_error(OnError::Closed));
    assert!(without.backend(FailingBackend).build().is_ok());
}

/// The share is as large as the limit, so that only strikes make a difference.
#[tokio::test]
async fn share_counts_strikes_of_its_own_while_the_store_fails() {
    let clock = ManualClock::default();
    let failing = Failing::of(&clock, 7..12);
    let limits = login().on_error(OnError::local(1));
    let local = MemoryBackend::builder().clock(clock.clone()).build();
    let layer = ThrottleLayer::builder(limits)
        .report_in(crate::ReportIn::Both)
        .local_store(&local)
        .backend(failing)
        .build()
        .unwrap();
    let mut banned = Vec::new();
    for _ in 0..16 {
        banned.push(is_banned(&from(&layer, 1, 200).await));
    }
    // Two strikes at the store, three and a ban at the share, the third strike at the store.
    let expected = [(false, 10), (true, 2), (false, 1), (true, 3)];
    assert_eq!(
        banned,
        expected
            .iter()
            .flat_map(|(is, times)| vec![*is; *times])
            .collect::<Vec<_>>()
    );
    assert_eq!(layer.settlements().failed, 0);
}

/// Also while the whole of the longest ban is left.
#[tokio::test]
async fn refusal_of_a_banned_key_asks_the_store_for_no_strike() {
    let (store, hour) = (
        Failing::of(&ManualClock::default(), 0..0),
        Duration::from_secs(3_600),
    );
    let limits = login_by(Arc::new(ClientIp::peer())).ban(Ban::after(3).lasting(hour).up_to(hour));
    let layer = ThrottleLayer::builder(limits.on_error(OnError::Closed))
        .report_in(crate::ReportIn::Both)
        .backend(store.clone())
        .build()
        .unwrap();
    statuses(&layer, 1, 200, 5 + 3 + 4).await;
    assert!(is_banned(&from(&layer, 1, 200).await));
    assert_eq!(store.struck.load(Ordering::Relaxed), 3);
}

#[cfg(feature = "metrics")]
#[test]
fn metric_counts_bans_of_limits_that_ban_and_is_of_no_other() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let other = limit("other", FixedWindow::new(Rate::per_hour(99))).by(ClientIp::peer());
        let layer = ThrottleLayer::builder(all([login(), other]))
            .observe(crate::Metrics::new("api"))
            .build()
            .unwrap();
        for host in [1, 2] {
            // Without a runtime, each request reports.
            let mut requests = Box::pin(statuses(&layer, host, 200, 20));
            assert!(
                requests
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_ready()
            );
        }
    });
    let text = recorder.handle().render();
    let series: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("throttle_bans_total{"))
        .collect();
    assert_eq!(
        series,
        [r#"throttle_bans_total{layer="api",policy="login"} 2"#],
        "{text}"
    );
}

/// The wait of a banned client is what the ban leaves, rounded up; jitter comes on top.
#[tokio::test]
async fn retry_after_of_a_banned_client_is_at_least_the_rest_of_the_ban() {
    let clock = ManualClock::default();
    let layer = on(&clock, login().strike_if(|_, _| true));
    assert_eq!(statuses(&layer, 1, 200, 3).await, [200; 3]);
    clock.set(clock.now().after_micros(1));
    let report = from(&layer, 1, 200)
        .await
        .extensions()
        .get::<LimitReport>()
        .cloned()
        .unwrap();
    assert_eq!(
        report.decision().retry_after(),
        Some(Duration::from_micros(599_999_999))
    );
}
