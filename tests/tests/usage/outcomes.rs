//! Refunds that depend on the response, or on its absence.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::{HeaderMap, HeaderValue, StatusCode};
use throttle_tower::{Limit, limit};

use crate::site::Site;
use crate::store::{Store, budget};

const UNITS: u64 = 100;

/// Responds with the status that the path names.
fn app() -> Router {
    let answer = |axum::extract::Path(status): axum::extract::Path<u16>| async move {
        let mut headers = HeaderMap::new();
        if status == 203 {
            headers.insert("x-cache", HeaderValue::from_static("HIT"));
        }
        (StatusCode::from_u16(status).unwrap(), headers, "text")
    };
    let never = || std::future::pending::<()>();
    Router::new()
        .route("/{status}", get(answer))
        .route("/never/never", get(never))
}

const STATUSES: [u16; 6] = [200, 203, 303, 404, 429, 503];

/// The statuses that are charged.
async fn charged(limit: impl Fn(Limit) -> Limit) -> Vec<u16> {
    let mut both = Vec::new();
    for store in Store::both().await {
        let site = Site::new(store, limit(budget("p", UNITS).cost(3)), app()).await;
        let mut charged = Vec::new();
        for status in STATUSES {
            let before = site.left("p", UNITS).await;
            let response = site.get(&format!("/{status}"), &[]).await;
            assert_eq!(response.status(), status);
            let after = site.left("p", UNITS).await;
            // In memory the refund is done by then. Over a store it may fail, so the headers show
            // the state at the decision.
            let stated = match site.store.name {
                "memory" => after,
                _ => before - 3,
            };
            let field = response.headers()["ratelimit"].to_str().unwrap();
            assert!(field.starts_with(&format!("\"p\";r={stated};")), "{field}");
            match before - after {
                0 => {}
                3 => charged.push(status),
                other => panic!("{}: {other} units for {status}", site.store.name),
            }
        }
        let settlements = site.layer.settlements();
        let refunds = u64::try_from(STATUSES.len() - charged.len()).unwrap();
        assert_eq!(
            (settlements.settled, settlements.failed),
            (refunds, 0),
            "{}",
            site.store.name
        );
        both.push(charged);
    }
    assert_eq!(both[0], both[1], "memory and Redis");
    both.swap_remove(0)
}

#[tokio::test]
async fn charge_is_refunded_if_any_rule_applies() {
    let cached = |_: StatusCode, headers: &HeaderMap| headers.contains_key("x-cache");
    assert_eq!(charged(|limit| limit).await, STATUSES);
    assert_eq!(
        charged(|own| own.refund_if(limit::successful)).await,
        [404, 429, 503]
    );
    assert_eq!(
        charged(|own| own.refund_if(limit::failed)).await,
        [200, 203, 303]
    );
    assert_eq!(
        charged(|own| own.refund_if(limit::server_error)).await,
        [200, 203, 303, 404, 429]
    );
    assert_eq!(
        charged(|limit| limit.refund_if(cached)).await,
        [200, 303, 404, 429, 503]
    );
    assert_eq!(
        charged(|limit| limit.refund_if(cached).refund_if(limit::server_error)).await,
        [200, 303, 404, 429]
    );
}

/// The limit of failed logins: a thousand successful ones pass, and three failed ones use it up.
#[tokio::test]
async fn attack_47_only_failures_use_up_the_limit() {
    for store in Store::both().await {
        let site = Site::new(
            store,
            budget("logins", 3).refund_if(limit::successful),
            app(),
        )
        .await;
        for _ in 0..20 {
            assert_eq!(site.status("/200").await, 200);
            site.settled().await;
        }
        for expected in [404, 404, 404, 429] {
            assert_eq!(site.status("/404").await, expected, "{}", site.store.name);
        }
    }
}

/// A client that disconnects before there is a response.
#[tokio::test]
async fn attack_35_aborted_request_stays_charged_by_default() {
    for (aborted, left) in [(false, UNITS - 1), (true, UNITS)] {
        for store in Store::both().await {
            let limit = budget("p", UNITS).refund_if(limit::server_error);
            let limit = if aborted {
                limit.refund_aborted()
            } else {
                limit
            };
            let site = Site::new(store, limit, app()).await;
            let gone =
                tokio::time::timeout(Duration::from_millis(200), site.get("/never/never", &[]))
                    .await;
            assert!(gone.is_err());
            if aborted {
                crate::site::until(|| site.layer.settlements().settled == 1).await;
            }
            assert_eq!(site.left("p", UNITS).await, left, "{}", site.store.name);
        }
    }
}

/// A response counts as one, whatever happens to its body: a charge that is settled later then
/// stays, at the handler's total or at the estimate.
#[tokio::test]
async fn charge_settled_later_is_refunded_only_without_a_response() {
    use http_body_util::{BodyExt, Full};
    use throttle_tower::Usage;
    use tower::{Layer, ServiceExt};

    /// How the request ends.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Read,
        DroppedBody,
        Failed,
        DroppedBeforeTheHead,
    }

    for store in Store::both().await {
        let layer = crate::site::layer(
            &store,
            budget("p", UNITS).cost(9).settled_later().refund_aborted(),
        );
        let mut before = 0;
        for (said, end, cost) in [
            (None, End::Read, 9),
            (Some(4), End::Read, 4),
            (None, End::DroppedBody, 9),
            (Some(4), End::DroppedBody, 4),
            (None, End::Failed, 0),
            (Some(4), End::Failed, 0),
            (None, End::DroppedBeforeTheHead, 0),
            (Some(4), End::DroppedBeforeTheHead, 0),
        ] {
            let handler = tower::service_fn(move |request: http::Request<()>| async move {
                let usage: &Usage = request.extensions().get().unwrap();
                if let Some(said) = said {
                    usage.add("p", said).unwrap();
                }
                match end {
                    End::Read | End::DroppedBody => {
                        Ok(http::Response::new(Full::new(bytes::Bytes::from("text"))))
                    }
                    End::Failed => Err("broken"),
                    End::DroppedBeforeTheHead => std::future::pending().await,
                }
            });
            let answering = layer.layer(handler).oneshot(http::Request::new(()));
            match end {
                End::Read => drop(
                    answering
                        .await
                        .unwrap()
                        .into_body()
                        .collect()
                        .await
                        .unwrap(),
                ),
                End::DroppedBody => drop(answering.await.unwrap()),
                End::Failed => assert_eq!(answering.await.map(drop).unwrap_err(), "broken"),
                End::DroppedBeforeTheHead => {
                    let waited = tokio::time::timeout(Duration::from_millis(300), answering).await;
                    assert!(waited.is_err());
                }
            }
            crate::site::settled(&layer).await;
            let used = store.used("p", UNITS).await;
            assert_eq!(
                used - before,
                cost,
                "{}: {said:?} said, {end:?}",
                store.name
            );
            before = used;
        }
        assert_eq!(layer.settlements().failed, 0, "{}", store.name);
    }
}

/// Refund rules read the handler's headers, not those that the layer adds.
#[tokio::test]
async fn charge_refund_rule_does_not_read_the_headers_of_the_layer() {
    let store = Store::memory();
    let limits = budget("p", UNITS).refund_if(|_, headers| headers.contains_key("ratelimit"));
    let site = Site::new(
        store,
        limits,
        Router::new().route("/", get(|| async { "hello" })),
    )
    .await;
    assert!(site.get("/", &[]).await.headers().contains_key("ratelimit"));
    assert_eq!(site.left("p", UNITS).await, UNITS - 1);
}
