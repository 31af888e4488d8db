//! Support that the tests share: a site with a clock that stands still, requests from chosen peers,
//! and sums over the responses.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any;
use http::request::Builder;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use proptest::test_runner::Config as ProptestConfig;
use sfv::{List, ListEntry, Parser};
use throttle_core::{ManualClock, Timestamp};
use throttle_tower::limit::IntoLimitTree;
use throttle_tower::{
    Gcra, KeyExtractor, Limit, MemoryBackend, Rate, ThrottleBuilder, ThrottleLayer, limit,
};
use tower::ServiceExt;

pub(crate) type Store = MemoryBackend<ManualClock>;

/// The start of a minute, of an hour and of a day.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_789_948_800 * 1_000_000);

/// The address of the one trusted proxy.
pub(crate) const PROXY: &str = "10.0.0.1";

/// Three a minute, with a burst of three.
pub(crate) fn three() -> Gcra {
    Gcra::new(Rate::per_minute(3))
}

/// Three a minute for each key.
pub(crate) fn three_by(extractor: impl KeyExtractor) -> Limit {
    limit("three", three()).by(extractor)
}

/// A router behind a layer, with access to the layer's clock and store.
pub(crate) struct Site {
    pub(crate) app: Router,
    pub(crate) clock: ManualClock,
    pub(crate) store: Store,
}

impl Site {
    /// Every method of `/`, limited.
    pub(crate) fn new(limits: impl IntoLimitTree) -> Self {
        Self::with(limits, |layer| {
            Router::new().route("/", any(ok)).layer(layer)
        })
    }

    pub(crate) fn with(
        limits: impl IntoLimitTree,
        app: impl FnOnce(ThrottleLayer<Store>) -> Router,
    ) -> Self {
        Self::built(limits, |builder| app(builder.build().unwrap()))
    }

    /// Behind a layer with settings.
    pub(crate) fn built(
        limits: impl IntoLimitTree,
        app: impl FnOnce(ThrottleBuilder<Store>) -> Router,
    ) -> Self {
        let (builder, clock, store) = builder(limits);
        Self {
            app: app(builder),
            clock,
            store,
        }
    }

    pub(crate) async fn send(&self, request: Builder) -> Response<Body> {
        send(&self.app, request).await
    }

    pub(crate) async fn status(&self, request: Builder) -> StatusCode {
        self.send(request).await.status()
    }

    /// How many of the requests get 200. The others must get 429.
    pub(crate) async fn admitted(&self, requests: impl IntoIterator<Item = Builder>) -> usize {
        let mut admitted = 0;
        for request in requests {
            match self.status(request).await {
                StatusCode::OK => admitted += 1,
                status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
            }
        }
        admitted
    }

    /// All requests spend one budget of three, and there is no other budget.
    pub(crate) async fn assert_one_bucket(&self, requests: impl IntoIterator<Item = Builder>) {
        assert_eq!(self.admitted(requests).await, 3);
        assert_eq!(self.store.keys(), 1);
    }
}

/// A layer on a clock that stands at [`START`].
pub(crate) fn layer(limits: impl IntoLimitTree) -> (ThrottleLayer<Store>, ManualClock, Store) {
    let (builder, clock, store) = builder(limits);
    (builder.build().unwrap(), clock, store)
}

/// The settings of such a layer.
pub(crate) fn builder(limits: impl IntoLimitTree) -> (ThrottleBuilder<Store>, ManualClock, Store) {
    let clock = ManualClock::new(START);
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    let builder = ThrottleLayer::builder(limits)
        .report_in(throttle_tower::ReportIn::Both)
        .backend(store.clone());
    (builder, clock, store)
}

pub(crate) async fn ok() -> &'static str {
    "ok"
}

/// `GET /` from a peer.
pub(crate) fn from(peer: &str) -> Builder {
    from_socket(SocketAddr::new(peer.parse::<IpAddr>().unwrap(), 40_000))
}

pub(crate) fn from_socket(peer: SocketAddr) -> Builder {
    Request::builder().uri("/").extension(ConnectInfo(peer))
}

pub(crate) async fn send(app: &Router, request: Builder) -> Response<Body> {
    let Ok(response) = app
        .clone()
        .oneshot(request.body(Body::empty()).unwrap())
        .await;
    response
}

/// The value of a header that occurs at most once.
pub(crate) fn field<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    let mut values = response.headers().get_all(name).iter();
    let value = values.next().map(|value| value.to_str().unwrap());
    assert!(values.next().is_none(), "{name} stands more than once");
    value
}

/// `Retry-After` in seconds.
pub(crate) fn retry_after<B>(response: &Response<B>) -> Option<u64> {
    field(response, "retry-after").map(|seconds| seconds.parse().unwrap())
}

/// A header that is a list of named members, read by an independent parser: each name with its
/// integer parameters.
pub(crate) fn list<B>(response: &Response<B>, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    parse_list(field(response, name).unwrap())
}

pub(crate) fn parse_list(value: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list = Parser::new(value).parse::<List>().unwrap();
    let item = |entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("{value}: not an item"),
    };
    let parameters = |parameters: sfv::Parameters| {
        let integers = parameters.into_iter().filter_map(|(key, value)| {
            let integer = value.as_integer()?;
            Some((key.as_str().to_owned(), i64::from(integer)))
        });
        integers.collect()
    };
    let members = list.into_iter().map(item);
    members
        .map(|item| {
            (
                item.bare_item.as_string().unwrap().as_str().to_owned(),
                parameters(item.params),
            )
        })
        .collect()
}

/// One parameter of the member of that name.
pub(crate) fn parameter<B>(
    response: &Response<B>,
    field: &str,
    member: &str,
    key: &str,
) -> Option<i64> {
    let members = list(response, field);
    let (_, parameters) = members.into_iter().find(|(name, _)| name == member)?;
    parameters
        .into_iter()
        .find_map(|(name, value)| (name == key).then_some(value))
}

pub(crate) async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.into()).unwrap()
}

/// At least this many random cases, more if the environment sets more. A failure prints its input
/// and leaves no file.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: config.cases.max(cases),
        failure_persistence: None,
        ..config
    }
}

/// A stream of numbers that look random but are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn token(&mut self) -> String {
        format!("{:016x}{:016x}", self.roll(), self.roll())
    }
}
