//! The settings of a layer, in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use proptest::prelude::*;
use throttle_core::{BackendErrorKind, BoxBackend};
use throttle_tower::{
    Dialect, Event, Gcra, Header, InFlight, LayerInfo, LimitReport, Observer, OnError, OnMissing,
    Rate, ThrottleBuilder, ThrottleLayer, all, limit,
};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, Text, get, memory, shared};

type Builder = ThrottleBuilder<BoxBackend>;
type Setter = Box<dyn Fn(Builder) -> Builder>;

/// What the observers and hooks of a layer have heard.
#[derive(Clone, Default)]
struct Calls(Arc<[AtomicUsize; 3]>);

impl Calls {
    fn count(&self, place: usize) {
        self.0[place].fetch_add(1, Ordering::SeqCst);
    }

    fn counts(&self) -> [usize; 3] {
        [0, 1, 2].map(|place| self.0[place].load(Ordering::SeqCst))
    }
}

impl Observer for Calls {
    fn built(&self, layer: &LayerInfo, former: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        assert_eq!((layer.limits().len(), former.is_none()), (3, true));
        self.count(0);
        None
    }

    fn decided(&self, _: &Event<'_>) {
        self.count(1);
    }
}

/// Every setter once, each with a value that a response or a count shows.
fn setters(remote: &Remote, calls: &Calls) -> Vec<Setter> {
    let limits = || {
        let twice = limit("twice", Gcra::new(Rate::per_minute(1)).burst(2));
        let by_user = limit("by-user", Gcra::new(Rate::per_hour(1)).burst(3));
        let by_user = by_user
            .by(Header::new("x-user"))
            .on_missing(OnMissing::Skip);
        all((
            twice.by(throttle_tower::Constant),
            by_user,
            limit("in-flight", InFlight::new(1)).by(Header::new("x-job")),
        ))
    };
    let (observer, heard, remote) = (calls.clone(), calls.clone(), remote.clone());
    let (store, other) = (memory(), memory());
    vec![
        Box::new(move |builder| builder.limits(limits())),
        Box::new(move |builder| builder.backend(BoxBackend::new(remote.clone()))),
        Box::new(move |builder| builder.observe(observer.clone())),
        Box::new(move |builder| {
            let heard = heard.clone();
            builder.on_decision(move |_| heard.count(2))
        }),
        Box::new(|builder| builder.on_error(OnError::local(1))),
        Box::new(move |builder| builder.local_store(&store)),
        Box::new(|builder| builder.when(|parts| parts.uri.path() != "/free")),
        Box::new(|builder| builder.headers(Dialect::Draft07)),
        Box::new(|builder| builder.hide_headers_if(|status, _| status == StatusCode::NOT_FOUND)),
        Box::new(|builder| {
            builder.response(|refusal| {
                let mut response = refusal.default_response();
                response.headers_mut().insert("x-own", 1.into());
                response
            })
        }),
        Box::new(|builder| builder.unavailable_retry_after(Duration::from_secs(7))),
        Box::new(|builder| builder.retry_jitter(0)),
        Box::new(|builder| builder.report_in(throttle_tower::ReportIn::Both)),
        Box::new(|builder| builder.max_waiting(3)),
        Box::new(|builder| builder.grpc_refusals(false)),
        // What is set has the last word, whether it is set before or after.
        Box::new(move |builder| {
            let defaults = ThrottleLayer::builder(shared("unused", 1))
                .headers(Dialect::None)
                .on_error(OnError::Closed)
                .local_store(&other)
                .retry_jitter(100)
                .report_in(throttle_tower::ReportIn::Request)
                .hide_headers_if(|_, _| true)
                .when(|_| false)
                .response(|_| Response::new("unused".into()))
                .max_waiting(0)
                .grpc_refusals(true)
                .unavailable_retry_after(Duration::from_secs(99))
                .observe(|_: &Event<'_>| panic!("observers are not taken"));
            builder.or(defaults)
        }),
    ]
}

/// The answers to some requests, and what was counted.
async fn answers(order: &[usize]) -> (Vec<String>, [usize; 3]) {
    let (remote, calls) = (Remote::faltering(false), Calls::default());
    let setters = setters(&remote, &calls);
    let start = ThrottleLayer::builder(shared("replaced", 9)).backend(BoxBackend::new(memory()));
    let set = |builder, place: &usize| setters[*place](builder);
    let service = order
        .iter()
        .fold(start, set)
        .build()
        .unwrap()
        .layer(Strict::default());
    let mut answers = Vec::new();
    for (path, user, fails) in [
        ("/free", None, false),
        ("/", Some("ada"), false),
        ("/", None, false),
        ("/", None, false),
        ("/", Some("bob"), true),
    ] {
        remote.trouble(fails.then_some(BackendErrorKind::Unavailable));
        let mut request = Request::get(path);
        if let Some(user) = user {
            request = request
                .header("x-user", user)
                .header("content-type", "application/grpc");
        }
        let request = request.body(Text::default()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        let has_report = response.extensions().get::<LimitReport>().is_some();
        let mut headers: Vec<_> = response.headers().iter().collect();
        headers.sort_by_key(|(name, _)| name.as_str());
        answers.push(format!("{} {has_report} {headers:?}", response.status()));
    }
    (answers, calls.counts())
}

proptest! {
    /// `or` comes last or first, or between.
    #[test]
    fn setters_of_a_builder_stand_in_any_order(order in Just((0..16).collect::<Vec<usize>>()).prop_shuffle()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let expected: Vec<usize> = (0..16).collect();
        prop_assert_eq!(runtime.block_on(answers(&order)), runtime.block_on(answers(&expected)));
    }
}

#[tokio::test]
async fn settings_are_seen_in_the_answers_that_the_orders_are_compared_by() {
    let (answers, counts) = answers(&(0..16).collect::<Vec<_>>()).await;
    assert_eq!(answers[0], "200 OK false []");
    for (answer, shown) in [
        (&answers[1], "200 OK true"),
        (&answers[1], "2;w=120"),
        (&answers[3], "429 Too Many Requests true"),
        (&answers[3], "x-own"),
        (&answers[4], "429"),
    ] {
        assert!(answer.contains(shown), "{shown} is not in: {answers:#?}");
    }
    assert_eq!(counts, [1, 4, 4], "built once, and four decisions");
}

#[test]
fn builder_reports_at_build_what_is_wrong_and_tells_no_observer_then() {
    let calls = Calls::default();
    let wrong = ThrottleLayer::builder(shared("p", 0)).observe(calls.clone());
    assert_eq!(wrong.build().unwrap_err().policy(), Some("p"));
    assert_eq!(calls.counts(), [0; 3]);
}

#[tokio::test]
async fn layers_of_one_builder_share_its_store_and_nothing_else() {
    let builder = ThrottleLayer::builder(shared("p", 1))
        .backend(memory())
        .report_in(throttle_tower::ReportIn::Both);
    let [one, other] = [builder.clone(), builder].map(|builder| builder.build().unwrap());
    let status = async |layer: &ThrottleLayer<_>| {
        let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
        response.status().as_u16()
    };
    assert_eq!((status(&one).await, status(&other).await), (200, 429));
    one.replace(shared("q", 9)).unwrap();
    assert_eq!((status(&one).await, status(&other).await), (200, 429));
}
