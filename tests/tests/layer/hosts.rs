//! Keys by the host that a request names, over HTTP/1.1 and HTTP/2.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::routing::get;
use http::request::Parts;
use http::{Request, StatusCode, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use throttle_tower::extract::{Host, from_fn};
use throttle_tower::{FixedWindow, OnMissing, Rate, ThrottleLayer, limit};
use tokio::net::TcpListener;
use tower::service_fn;

use crate::common::Text;

/// The tenants of this site have a host each. Others are not found.
async fn site(requests: u64) -> SocketAddr {
    let tenant = from_fn(|parts: &Parts| {
        let host = Host::name(parts)?;
        host.strip_suffix(".example.com").map(str::to_owned)
    });
    let per_tenant = limit("per-tenant", FixedWindow::new(Rate::per_day(requests)))
        .by(tenant)
        .on_missing(OnMissing::Reject(StatusCode::NOT_FOUND));
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(ThrottleLayer::new(per_tenant).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Requests reach the site whatever host they name.
async fn status(site: SocketAddr, version: Version, host: &str) -> u16 {
    let connector = service_fn(move |_| {
        let connector = HttpConnector::new();
        tower::ServiceExt::oneshot(connector, format!("http://{site}").parse().unwrap())
    });
    let client = Client::builder(TokioExecutor::new())
        .http2_only(version == Version::HTTP_2)
        .build::<_, Text>(connector);
    // Over HTTP/1.1 the authority becomes the `Host`.
    let request = Request::get(format!("http://{host}/")).version(version);
    let response = client
        .request(request.body(Text::default()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.version(), version);
    response.status().as_u16()
}

#[tokio::test]
async fn tenant_has_one_budget_over_both_versions_of_http_and_in_any_spelling() {
    let spellings = [
        "acme.example.com",
        "acme.example.com:8443",
        "ACME.Example.com",
        "Acme.example.com.:80",
    ];
    let site = site(2 * spellings.len() as u64).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for host in spellings {
            assert_eq!(status(site, version, host).await, 200, "{version:?} {host}");
        }
    }
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for host in spellings {
            assert_eq!(status(site, version, host).await, 429, "{version:?} {host}");
        }
        assert_eq!(status(site, version, "other.example.com").await, 200);
    }
}

#[tokio::test]
async fn request_for_another_host_has_no_key() {
    let site = site(9).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for host in ["example.com", "acme.example.org", "127.0.0.1"] {
            assert_eq!(status(site, version, host).await, 404, "{version:?} {host}");
        }
    }
}
