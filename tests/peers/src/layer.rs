//! The whole layer through axum's router: the cost of a request with it and without it.

use std::convert::Infallible;
use std::future::Future;
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::routing::get;
use throttle_tower::{
    ClientIp, Dialect, Gcra, KeyExtractor, LimitTree, Rate, ReportIn, ThrottleLayer, TokenBucket,
    all, limit,
};
use tower::{Service, ServiceExt};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::alloc;
use crate::report;
use crate::stage::{Contender, compete};

const BATCH: usize = 2_000;

pub fn run() {
    contest(
        "Admitted, through Router::oneshot",
        StatusCode::OK,
        &[
            ("no layer", app()),
            (
                "identity layer",
                app().layer(tower::layer::util::Identity::new()),
            ),
            (
                "throttle, two policies, all fields",
                app().layer(throttle(generous())),
            ),
            (
                "the same, report in the response too",
                app().layer(reporting(ReportIn::Both, generous())),
            ),
            (
                "throttle, one policy, all fields",
                app().layer(throttle(one())),
            ),
            (
                "throttle, two policies, no fields",
                app().layer(bare(generous())),
            ),
            (
                "tower_governor, one policy, no fields",
                app().layer(GovernorLayer::new(governor(u32::MAX))),
            ),
            (
                "tower_governor, one policy, its fields",
                app().layer(GovernorLayer::new(informed(u32::MAX))),
            ),
        ],
    );
    contest(
        "Refused, through Router::oneshot",
        StatusCode::TOO_MANY_REQUESTS,
        &[
            (
                "throttle, two policies, problem+json",
                exhausted(app().layer(throttle(scarce()))),
            ),
            (
                "tower_governor, one policy",
                exhausted(app().layer(GovernorLayer::new(governor(1)))),
            ),
            (
                "tower_governor, its fields",
                exhausted(app().layer(GovernorLayer::new(informed(1)))),
            ),
        ],
    );
}

fn contest(title: &str, status: StatusCode, apps: &[(&str, Router)]) {
    report::title(
        title,
        &[
            "layer",
            "ns a request",
            "ns more than the first but one",
            "allocations",
        ],
    );
    let apps: Vec<_> = apps
        .iter()
        .map(|(name, app)| (*name, as_served(app.clone())))
        .collect();
    let contenders: Vec<Contender<'_>> = apps
        .iter()
        .map(|(name, app)| {
            assert_eq!(answer(app.clone(), request()).status(), status, "{name}");
            Box::new(move |_, _| {
                for _ in 0..BATCH {
                    black_box(answer(app.clone(), request()));
                }
                BATCH
            }) as Contender<'_>
        })
        .collect();
    let rounds = compete(&contenders, 1);
    let base = rounds.get(1).filter(|_| status == StatusCode::OK);
    for ((name, app), nanos) in apps.iter().zip(&rounds) {
        let more = base.map_or(String::from("–"), |base| {
            let more: Vec<f64> = nanos
                .iter()
                .zip(base)
                .map(|(with, without)| with - without)
                .collect();
            report::spread(&more, 0)
        });
        let app = app.clone();
        let allocations = alloc::calls(|| drop(black_box(answer(app, request()))));
        report::row(&[
            (*name).to_owned(),
            report::spread(nanos, 0),
            more,
            allocations.to_string(),
        ]);
    }
}

/// The rows whose instructions are counted, an identity layer first.
pub fn counted() -> Vec<(&'static str, Router)> {
    let apps = [
        (
            "identity layer",
            app().layer(tower::layer::util::Identity::new()),
        ),
        (
            "throttle, one policy, headers",
            app().layer(throttle(one())),
        ),
        ("throttle, one policy, no headers", app().layer(bare(one()))),
        (
            "throttle, one policy, headers, report nowhere",
            app().layer(reporting(ReportIn::Nowhere, one())),
        ),
        (
            "throttle, two policies, headers",
            app().layer(throttle(generous())),
        ),
        (
            "throttle, one policy, refused",
            exhausted(app().layer(throttle(scarce_one()))),
        ),
        (
            "tower_governor, one policy, its headers",
            app().layer(GovernorLayer::new(informed(u32::MAX))),
        ),
        (
            "tower_governor, refused, its headers",
            exhausted(app().layer(GovernorLayer::new(informed(1)))),
        ),
        (
            "throttle, two policies with conditions, headers",
            app().layer(throttle(two_of(2))),
        ),
        (
            "throttle, two of twenty policies apply, headers",
            app().layer(throttle(two_of(20))),
        ),
    ];
    apps.map(|(name, app)| (name, as_served(app))).into()
}

/// The rows of a server under load, no layer first.
pub fn served() -> Vec<(&'static str, Router)> {
    vec![
        ("no layer", app()),
        (
            "throttle, one policy, headers",
            app().layer(throttle(one())),
        ),
        ("throttle, one policy, no headers", app().layer(bare(one()))),
        (
            "tower_governor, one policy, its headers",
            app().layer(GovernorLayer::new(informed(u32::MAX))),
        ),
        (
            "tower_governor, one policy, no headers",
            app().layer(GovernorLayer::new(governor(u32::MAX))),
        ),
    ]
}

pub fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 40_000))));
    request
}

/// One request through a clone of the app, as a server makes one for each connection.
pub fn answer(mut app: Router, request: Request<Body>) -> Response {
    let mut context = Context::from_waker(Waker::noop());
    let ready: Poll<Result<(), Infallible>> =
        Service::<Request<Body>>::poll_ready(&mut app, &mut context);
    assert!(ready.is_ready());
    match pin!(app.oneshot(request)).poll(&mut context) {
        Poll::Ready(Ok(response)) => response,
        _ => unreachable!("nothing here has to be waited for"),
    }
}

/// The app as a server runs it: its layers are applied now, and not again for each request.
fn as_served(app: Router) -> Router {
    app.with_state(())
}

fn exhausted(app: Router) -> Router {
    while answer(app.clone(), request()).status() == StatusCode::OK {}
    app
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn throttle(limits: LimitTree) -> ThrottleLayer {
    ThrottleLayer::new(limits).expect("a valid configuration")
}

fn reporting(report_in: ReportIn, limits: LimitTree) -> ThrottleLayer {
    ThrottleLayer::builder(limits)
        .report_in(report_in)
        .build()
        .expect("a valid configuration")
}

fn bare(limits: LimitTree) -> ThrottleLayer {
    ThrottleLayer::builder(limits)
        .headers(Dialect::None)
        .build()
        .expect("a valid configuration")
}

fn generous() -> LimitTree {
    two(Rate::per_second(1_000_000), 1_000_000)
}

fn scarce() -> LimitTree {
    two(Rate::per_day(1), 1)
}

fn two(rate: Rate, burst: u64) -> LimitTree {
    all([
        limit("per-ip", Gcra::new(rate).burst(burst)).by(ClientIp::peer()),
        limit("per-route", TokenBucket::new(rate).burst(burst)).by((
            throttle_tower::Route,
            ClientIp::peer().or(throttle_tower::Constant),
        )),
    ])
}

/// So many policies, of which the first two apply to the request.
fn two_of(policies: usize) -> LimitTree {
    let policy = |n: usize| {
        let path = if n < 2 {
            "/".to_owned()
        } else {
            format!("/{n}")
        };
        let gcra = Gcra::new(Rate::per_second(1_000_000));
        limit(format!("policy-{n}"), gcra)
            .by(ClientIp::peer())
            .when(move |parts: &Parts| parts.uri.path() == path)
    };
    all((0..policies).map(policy).collect::<Vec<_>>())
}

fn one() -> LimitTree {
    limit("per-ip", Gcra::new(Rate::per_second(1_000_000)))
        .by(ClientIp::peer())
        .into()
}

fn scarce_one() -> LimitTree {
    limit("per-ip", Gcra::new(Rate::per_day(1)).burst(1))
        .by(ClientIp::peer())
        .into()
}

/// Configured as in its own documentation, with a burst of one for refusals.
macro_rules! config {
    ($builder:expr, $burst:expr) => {
        $builder
            .period(if $burst == 1 {
                Duration::from_secs(86_400)
            } else {
                Duration::from_nanos(1)
            })
            .burst_size($burst)
            .finish()
            .expect("a valid configuration")
    };
}

fn governor(
    burst: u32,
) -> tower_governor::governor::GovernorConfig<
    tower_governor::key_extractor::PeerIpKeyExtractor,
    governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>,
> {
    config!(GovernorConfigBuilder::default(), burst)
}

fn informed(
    burst: u32,
) -> tower_governor::governor::GovernorConfig<
    tower_governor::key_extractor::PeerIpKeyExtractor,
    governor::middleware::StateInformationMiddleware,
> {
    config!(GovernorConfigBuilder::default().use_headers(), burst)
}
