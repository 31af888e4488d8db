//! One small app behind each HTTP layer, as its documentation shows it.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::routing::get;
use axum_governor::extractor::{KeyExtractor, PeerIp};
use rate_net::tower as rate_net_layer;
use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
use tower::util::MapRequestLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor;

use super::ideal::Quota;

/// A layer with its default key, the address of the peer.
pub struct App {
    pub name: &'static str,
    pub make: fn(Quota) -> Router,
}

pub const APPS: [App; 4] = [
    App {
        name: "throttle",
        make: |quota| throttle(quota, ClientIp::peer()),
    },
    App {
        name: "tower_governor",
        make: |quota| tower_governor(quota, GovernorConfigBuilder::default().key_extractor(PEER)),
    },
    App {
        name: "axum-governor",
        make: |quota| axum_governor(quota, PeerIp::default()),
    },
    App {
        name: "rate-net",
        make: |quota| rate_net(quota, rate_net_layer::PeerIp::default()),
    },
];

const PEER: key_extractor::PeerIpKeyExtractor = key_extractor::PeerIpKeyExtractor;

pub fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

pub fn throttle(quota: Quota, client: ClientIp) -> Router {
    let gcra = Gcra::new(Rate::new(quota.count.into(), quota.period));
    hello().layer(ThrottleLayer::new(limit("per-ip", gcra).by(client)).expect(
        "a valid \
        configuration",
    ))
}

/// With its headers, which include `Retry-After`.
pub fn tower_governor<K>(quota: Quota, mut builder: TowerGovernor<K>) -> Router
where
    K: key_extractor::KeyExtractor + Send + Sync + 'static,
    K::Key: Send + Sync + 'static,
{
    let config = builder
        .period(quota.interval())
        .burst_size(quota.count)
        .use_headers()
        .finish();
    hello().layer(tower_governor::GovernorLayer::new(
        config.expect("a valid configuration"),
    ))
}

pub type TowerGovernor<K> =
    GovernorConfigBuilder<K, governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>>;

pub fn axum_governor<E: KeyExtractor>(quota: Quota, extractor: E) -> Router {
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(extractor)
        .expect_connect_info()
        .quota_default(of_governor(quota).into())
        .finish();
    hello().layer(axum_governor::GovernorLayer::new(
        config.expect("a valid configuration"),
    ))
}

pub fn rate_net<K: rate_net_layer::KeyExtractor>(quota: Quota, extractor: K) -> Router {
    let limiter = rate_net::RateLimiter::builder()
        .quota(quota.count, quota.period)
        .burst(quota.count)
        .try_build();
    let layer =
        rate_net_layer::RateLimitLayer::new(limiter.expect("a valid configuration"), extractor);
    // It does not read axum's `ConnectInfo`, so the app passes the address on, as its documentation
    // says.
    hello()
        .layer(layer)
        .layer(MapRequestLayer::new(|mut request: Request<Body>| {
            if let Some(ConnectInfo(peer)) = request
                .extensions()
                .get::<ConnectInfo<SocketAddr>>()
                .copied()
            {
                request.extensions_mut().insert(peer);
            }
            request
        }))
}

pub fn of_governor(quota: Quota) -> governor::Quota {
    let burst = NonZeroU32::new(quota.count).expect("a quota is not zero");
    governor::Quota::with_period(quota.interval())
        .expect("a period is not zero")
        .allow_burst(burst)
}

/// A request as axum hands it on from a peer.
pub fn request_from(peer: IpAddr) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::from((peer, 40_000))));
    request
}
