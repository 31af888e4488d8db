//! Limits of rule files, and proxies that ask by HTTP whether a request may pass: Traefik's
//! forwardAuth, Caddy's forward_auth, nginx's auth_request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use throttle_core::BoxBackend;
use throttle_rules::{Registry, Rules, Watch};
use throttle_tower::{Metrics, Page, ThrottleLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::by_rules::RequestHits;

/// What the proxies call the parts of the request that they ask about.
const METHOD: [&str; 2] = ["x-forwarded-method", "x-original-method"];
const URI: [&str; 2] = ["x-forwarded-uri", "x-original-uri"];
const FORWARDED_HOST: &str = "x-forwarded-host";

/// The limits of a rule file.
#[derive(Clone)]
pub struct Check {
    layer: ThrottleLayer<BoxBackend>,
    /// It follows the file as long as it is kept.
    _watch: Arc<Watch>,
}

#[derive(Deserialize)]
pub struct Answer {
    deny: Option<u16>,
}

impl Check {
    /// `name` is what metrics and the page call the limits.
    pub fn new(name: &str, file: &Path, backend: BoxBackend, page: &Page) -> anyhow::Result<Self> {
        let hits = |parts: &Parts| parts.extensions.get().map_or(1, |RequestHits(hits)| *hits);
        let registry = Registry::new().cost("hits", hits);
        let builder = ThrottleLayer::builder(())
            .backend(backend)
            .observe(Metrics::new(name))
            .observe(page.clone());
        let (layer, handle) = Rules::from_path(file, registry)?.layer_with(builder)?;
        handle.on_reload(|reloaded| match reloaded {
            Ok(change) => tracing::info!(%change, "other rules are in force"),
            Err(error) => tracing::error!(%error, "the former rules stay in force"),
        });
        let _watch = Arc::new(handle.watch()?);
        Ok(Self { layer, _watch })
    }

    /// Whether a request may pass: 200, or the refusal.
    pub async fn decide(&self, mut request: Request<Body>) -> Response {
        // A refusal in the words of gRPC has the status 200.
        request.headers_mut().remove(CONTENT_TYPE);
        let admitted =
            service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
        match self.layer.layer(admitted).oneshot(request).await {
            Ok(response) => response.map(Body::new),
            Err(never) => match never {},
        }
    }

    /// `/check`
    pub async fn answer(
        State(check): State<Self>,
        Query(answer): Query<Answer>,
        ConnectInfo(peer): ConnectInfo<SocketAddr>,
        request: Request<Body>,
    ) -> Response {
        let (parts, _) = request.into_parts();
        let Some(request) = asked_about(parts, peer) else {
            let message = "the forwarded method or URI cannot be read\n";
            return (StatusCode::BAD_REQUEST, message).into_response();
        };
        let mut response = check.decide(request).await;
        if let (StatusCode::TOO_MANY_REQUESTS, Some(deny)) = (response.status(), answer.deny) {
            *response.status_mut() =
                StatusCode::from_u16(deny).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        }
        response
    }
}

/// The request that a proxy asks about. `None` if it cannot be one.
fn asked_about(parts: Parts, peer: SocketAddr) -> Option<Request<Body>> {
    let mut headers = parts.headers;
    let first = |headers: &HeaderMap, names: [&str; 2]| {
        names.iter().find_map(|name| headers.get(*name).cloned())
    };
    let method = first(&headers, METHOD)
        .map_or(Ok(parts.method), |method| method.as_bytes().try_into())
        .ok()?;
    let uri = first(&headers, URI).unwrap_or(HeaderValue::from_static("/"));
    if let Some(host) = headers.get(FORWARDED_HOST).cloned() {
        headers.insert(HOST, host);
    }
    let mut request = Request::builder()
        .method(method)
        .uri(uri.as_bytes())
        .body(Body::empty())
        .ok()?;
    *request.headers_mut() = headers;
    request.extensions_mut().insert(ConnectInfo(peer));
    Some(request)
}
