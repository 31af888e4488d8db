//! The reports of a handler, and when they are final.

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use throttle_tower::usage::UsageError;
use throttle_tower::{LimitTree, Usage, all, any, limit};

use crate::site::{Site, estimate};
use crate::store::{Store, budget};

const UNITS: u64 = 1_000;

/// Requests, tokens, and the same tokens in a larger budget.
fn limits() -> LimitTree {
    all([
        budget("requests", UNITS),
        budget("tokens", UNITS).cost(estimate).settled_later(),
        budget("month", UNITS).cost(estimate).settled_later(),
    ])
}

type Script = fn(&Usage) -> Result<(), UsageError>;

/// The charges for requests, tokens and month of a request with an estimate of 100, after its
/// handler ran this script.
async fn cost(script: Script) -> [u64; 3] {
    let mut both = Vec::new();
    for store in Store::both().await {
        let handler = move |usage: Usage| async move { script(&usage).map(|()| "done") };
        let site = Site::new(store, limits(), Router::new().route("/", get(handler))).await;
        let response = site.get("/", &[("x-estimate", 100)]).await;
        let (status, body) = (
            response.status(),
            String::from_utf8_lossy(response.body()).into_owned(),
        );
        assert_eq!(status, StatusCode::OK, "{body}");
        let mut used = [0; 3];
        for (used, name) in used.iter_mut().zip(["requests", "tokens", "month"]) {
            *used = UNITS - site.left(name, UNITS).await;
        }
        assert_eq!(site.layer.settlements().failed, 0);
        both.push(used);
    }
    assert_eq!(both[0], both[1], "memory and Redis");
    both.swap_remove(0)
}

#[tokio::test]
async fn charge_is_the_estimate_without_a_report() {
    assert_eq!(cost(|_| Ok(())).await, [1, 100, 100]);
    assert_eq!(
        cost(|usage| {
            assert_eq!(usage.policies().collect::<Vec<_>>(), ["tokens", "month"]);
            assert_eq!(
                (
                    usage.taken("tokens"),
                    usage.used("tokens"),
                    usage.taken("requests")
                ),
                (100, None, 0)
            );
            assert_eq!(format!("{usage:?}"), r#"{"tokens": 100, "month": 100}"#);
            Ok(())
        })
        .await,
        [1, 100, 100]
    );
}

#[tokio::test]
async fn charge_of_an_unknown_name_is_an_error_with_the_known_names() {
    let wrong = |usage: &Usage| {
        for name in ["token", "requests"] {
            let known = vec!["tokens".to_owned(), "month".to_owned()];
            let error = UsageError::UnknownPolicy {
                name: name.to_owned(),
                known,
            };
            assert_eq!(usage.settle(name, 1), Err(error.clone()));
            assert_eq!(usage.add(name, 1), Err(error.clone()));
            let said =
                format!("no limit named {name:?} is settled later; those that are: tokens, month");
            assert_eq!(error.to_string(), said);
        }
        Ok(())
    };
    assert_eq!(cost(wrong).await, [1, 100, 100]);
}

/// A refund rule takes precedence over the running total, but not over the handler.
#[tokio::test]
async fn charge_is_refunded_unless_the_handler_has_settled_it() {
    for store in Store::both().await {
        let limits = all([
            budget("added", UNITS)
                .cost(estimate)
                .settled_later()
                .refund_if(limit::failed),
            budget("settled", UNITS)
                .cost(estimate)
                .settled_later()
                .refund_if(limit::failed),
        ]);
        let handler = |usage: Usage| async move {
            usage.add("added", 500).unwrap();
            usage.settle("settled", 30).unwrap();
            StatusCode::BAD_GATEWAY
        };
        let site = Site::new(store, limits, Router::new().route("/", get(handler))).await;
        assert_eq!(
            site.get("/", &[("x-estimate", 100)]).await.status(),
            StatusCode::BAD_GATEWAY
        );
        assert_eq!(
            site.left("added", UNITS).await,
            UNITS,
            "{}",
            site.store.name
        );
        assert_eq!(
            site.left("settled", UNITS).await,
            UNITS - 30,
            "{}",
            site.store.name
        );
    }
}

/// A limit that reserved one unit, and one that reserved too much, settled in one step.
#[tokio::test]
async fn charge_made_afterwards_leaves_the_other_limits_to_be_settled() {
    for store in Store::both().await {
        let limits = all([
            budget("tokens", UNITS).cost(0).settled_later(),
            budget("month", UNITS).cost(estimate).settled_later(),
        ]);
        let app = Router::new().route("/", get(|usage: Usage| async move { usage.settle_all(30) }));
        let site = Site::new(store, limits, app).await;
        assert_eq!(
            site.get("/", &[("x-estimate", 100)]).await.status(),
            StatusCode::OK
        );
        for name in ["tokens", "month"] {
            assert_eq!(
                site.left(name, UNITS).await,
                UNITS - 30,
                "{}: {name}",
                site.store.name
            );
        }
    }
}

/// A limit that refunds by the response is not among those that a handler settles.
#[tokio::test]
async fn charge_that_goes_by_the_response_is_not_settled_by_the_handler() {
    for store in Store::both().await {
        let limits = all([
            budget("tokens", UNITS).cost(estimate).settled_later(),
            budget("failures", UNITS)
                .cost(estimate)
                .refund_if(limit::failed),
        ]);
        let handler = |usage: Usage| async move {
            usage.refund().unwrap();
            assert!(usage.refund().is_err(), "none is left that it may settle");
        };
        let site = Site::new(store, limits, Router::new().route("/", get(handler))).await;
        assert_eq!(
            site.get("/", &[("x-estimate", 100)]).await.status(),
            StatusCode::OK
        );
        assert_eq!(
            site.left("tokens", UNITS).await,
            UNITS,
            "{}",
            site.store.name
        );
        assert_eq!(
            site.left("failures", UNITS).await,
            UNITS - 100,
            "{}",
            site.store.name
        );
    }
}

/// Of an `any`, only the member that was charged is charged more; a limit that does not apply never
/// is.
#[tokio::test]
async fn charge_of_a_member_that_was_not_charged_stays_zero() {
    for store in Store::both().await {
        let limits = all((
            any([
                budget("own", UNITS).cost(estimate).settled_later(),
                budget("pool", UNITS).cost(estimate).settled_later(),
            ]),
            budget("never", UNITS)
                .cost(0)
                .settled_later()
                .when(|_| false),
        ));
        let app = Router::new().route(
            "/",
            get(|usage: Usage| async move {
                for name in ["own", "pool", "never"] {
                    assert!(usage.add(name, 300).unwrap());
                }
                assert_eq!((usage.taken("pool"), usage.taken("never")), (0, 0));
                usage.settle("never", 5)
            }),
        );
        let site = Site::new(store, limits, app).await;
        assert_eq!(
            site.get("/", &[("x-estimate", 100)]).await.status(),
            StatusCode::OK
        );
        let mut used = Vec::new();
        for name in ["own", "pool", "never"] {
            used.push(UNITS - site.left(name, UNITS).await);
        }
        assert_eq!(used, [300, 0, 0], "{}", site.store.name);
    }
}
