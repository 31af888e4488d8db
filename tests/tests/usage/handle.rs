//! The reports of a handler, and when they are final.

use axum::routing::get;
use axum::{Extension, Router};
use http::StatusCode;
use throttle_tower::usage::UsageError;
use throttle_tower::{LimitTree, Usage, all, any};

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

/// The charges for requests, tokens and month of a request with an estimate of 100, after its handler ran this script.
async fn cost(script: Script) -> [u64; 3] {
    let mut both = Vec::new();
    for store in Store::both().await {
        let handler = move |usage: Usage| async move { script(&usage).map(|()| "done") };
        let site = Site::new(store, limits(), Router::new().route("/", get(handler))).await;
        let response = site.get("/", &[("x-estimate", 100)]).await;
        let (status, body) = (response.status(), String::from_utf8_lossy(response.body()).into_owned());
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
            assert_eq!((usage.taken("tokens"), usage.used("tokens"), usage.taken("requests")), (100, None, 0));
            assert_eq!(format!("{usage:?}"), r#"{"tokens": 100, "month": 100}"#);
            Ok(())
        })
        .await,
        [1, 100, 100]
    );
}

#[tokio::test]
async fn charge_is_what_was_settled() {
    assert_eq!(cost(|usage| usage.settle("tokens", 7)).await, [1, 7, 100]);
    assert_eq!(cost(|usage| usage.settle("tokens", 700)).await, [1, 700, 100]);
    assert_eq!(cost(|usage| usage.settle("tokens", 7_000)).await, [1, UNITS, 100], "no more than there is");
    assert_eq!(cost(|usage| usage.settle_all(30)).await, [1, 30, 30]);
    assert_eq!(cost(Usage::refund).await, [1, 0, 0]);
    assert_eq!(cost(|usage| usage.settle("tokens", 7).and_then(|()| usage.refund())).await, [1, 7, 0]);
}

#[tokio::test]
async fn charge_is_the_running_total() {
    assert_eq!(cost(|usage| usage.add("tokens", 40).map(|_| ())).await, [1, 40, 100]);
    assert_eq!(cost(|usage| usage.add("tokens", 0).map(|_| ())).await, [1, 0, 100]);
    assert_eq!(
        cost(|usage| {
            for _ in 0..41 {
                usage.add("tokens", 10)?;
            }
            assert_eq!(usage.used("tokens"), Some(410));
            Ok(())
        })
        .await,
        [1, 410, 100]
    );
    // An explicit total overrides what was added before.
    assert_eq!(cost(|usage| usage.add("tokens", 400).and_then(|_| usage.settle("tokens", 5))).await, [1, 5, 100]);
}

#[tokio::test]
async fn charge_is_settled_once() {
    let again = |usage: &Usage| {
        usage.settle("tokens", 50)?;
        let settled = Err(UsageError::Settled { name: "tokens".to_owned() });
        assert_eq!(usage.settle("tokens", 0), settled);
        assert_eq!(usage.add("tokens", 1).map(|_| ()), settled);
        usage.settle("month", 60)?;
        let error = usage.refund().unwrap_err();
        assert_eq!(error.to_string(), r#"the usage of "tokens, month" is final already"#);
        Ok(())
    };
    assert_eq!(cost(again).await, [1, 50, 60]);
}

#[tokio::test]
async fn charge_of_an_unknown_name_is_an_error_with_the_known_names() {
    let wrong = |usage: &Usage| {
        for name in ["token", "requests"] {
            let known = vec!["tokens".to_owned(), "month".to_owned()];
            let error = UsageError::UnknownPolicy { name: name.to_owned(), known };
            assert_eq!(usage.settle(name, 1), Err(error.clone()));
            assert_eq!(usage.add(name, 1), Err(error.clone()));
            let said = format!("no limit named {name:?} is settled later; those that are: tokens, month");
            assert_eq!(error.to_string(), said);
        }
        Ok(())
    };
    assert_eq!(cost(wrong).await, [1, 100, 100]);
}

/// After the response has ended, a remaining clone changes nothing.
#[tokio::test]
async fn charge_is_final_when_the_response_has_ended() {
    for store in Store::both().await {
        let (send, mut kept) = tokio::sync::mpsc::unbounded_channel::<Usage>();
        let handler = move |usage: Usage| async move {
            usage.add("tokens", 20).unwrap();
            send.send(usage).unwrap();
            "done"
        };
        let site = Site::new(store, limits(), Router::new().route("/", get(handler))).await;
        site.get("/", &[("x-estimate", 100)]).await;
        let usage = kept.recv().await.unwrap();
        crate::site::until(|| usage.add("tokens", 0).is_err()).await;
        assert_eq!(usage.settle_all(0).unwrap_err().to_string(), r#"the usage of "tokens, month" is final already"#);
        assert_eq!(site.left("tokens", UNITS).await, UNITS - 20, "{}", site.store.name);
    }
}

/// Without axum's extractor, the usage is in the extensions; without such a limit, it is absent.
#[tokio::test]
async fn charge_usage_is_in_the_extensions_if_a_limit_is_settled_later() {
    for store in Store::both().await {
        let app = Router::new().route("/", get(|Extension(usage): Extension<Usage>| async move { usage.refund() }));
        let site = Site::new(store.clone(), limits(), app).await;
        assert_eq!(site.get("/", &[("x-estimate", 100)]).await.status(), StatusCode::OK);
        assert_eq!(site.left("tokens", UNITS).await, UNITS);

        let app = Router::new().route("/", get(|usage: Option<Usage>| async move { usage.is_none().to_string() }));
        let app = app.route("/needed", get(|usage: Usage| async move { usage.refund() }));
        let site = Site::new(store, budget("requests", UNITS).refund_failed(), app).await;
        assert_eq!(site.get("/", &[]).await.body(), "true");
        let response = site.get("/needed", &[]).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(response.body().is_empty(), "what the program lacks is none of the client's business");
    }
}

/// A refund rule takes precedence over the running total, but not over the handler.
#[tokio::test]
async fn charge_is_refunded_unless_the_handler_has_settled_it() {
    for store in Store::both().await {
        let limits = all([
            budget("added", UNITS).cost(estimate).settled_later().refund_failed(),
            budget("settled", UNITS).cost(estimate).settled_later().refund_failed(),
        ]);
        let handler = |usage: Usage| async move {
            usage.add("added", 500).unwrap();
            usage.settle("settled", 30).unwrap();
            StatusCode::BAD_GATEWAY
        };
        let site = Site::new(store, limits, Router::new().route("/", get(handler))).await;
        assert_eq!(site.get("/", &[("x-estimate", 100)]).await.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(site.left("added", UNITS).await, UNITS, "{}", site.store.name);
        assert_eq!(site.left("settled", UNITS).await, UNITS - 30, "{}", site.store.name);
    }
}

/// A limit that reserves nothing is charged afterwards, at the end too.
#[tokio::test]
async fn charge_of_a_zero_estimate_is_made_afterwards() {
    for store in Store::both().await {
        let app = Router::new()
            .route("/add", get(|usage: Usage| async move { usage.add("tokens", 30).map(|_| ()) }))
            .route("/settle", get(|usage: Usage| async move { usage.settle("tokens", 50) }))
            .route("/nothing", get(|_: Usage| async {}));
        let site = Site::new(store, budget("tokens", UNITS).cost(0).settled_later(), app).await;
        for (path, left) in [("/nothing", UNITS), ("/add", UNITS - 30), ("/settle", UNITS - 80)] {
            assert_eq!(site.status(path).await, StatusCode::OK);
            assert_eq!(site.left("tokens", UNITS).await, left, "{}: {path}", site.store.name);
        }
    }
}

/// A limit that reserved nothing, and one that reserved too much, settled in one step.
#[tokio::test]
async fn charge_made_afterwards_leaves_the_other_limits_to_be_settled() {
    for store in Store::both().await {
        let limits = all([
            budget("tokens", UNITS).cost(0).settled_later(),
            budget("month", UNITS).cost(estimate).settled_later(),
        ]);
        let app = Router::new().route("/", get(|usage: Usage| async move { usage.settle_all(30) }));
        let site = Site::new(store, limits, app).await;
        assert_eq!(site.get("/", &[("x-estimate", 100)]).await.status(), StatusCode::OK);
        for name in ["tokens", "month"] {
            assert_eq!(site.left(name, UNITS).await, UNITS - 30, "{}: {name}", site.store.name);
        }
    }
}

/// A limit that refunds by the response is not among those that a handler settles.
#[tokio::test]
async fn charge_that_goes_by_the_response_is_not_settled_by_the_handler() {
    for store in Store::both().await {
        let limits = all([
            budget("tokens", UNITS).cost(estimate).settled_later(),
            budget("failures", UNITS).cost(estimate).refund_failed(),
        ]);
        let handler = |usage: Usage| async move {
            usage.refund().unwrap();
            assert!(usage.refund().is_err(), "none is left that it may settle");
        };
        let site = Site::new(store, limits, Router::new().route("/", get(handler))).await;
        assert_eq!(site.get("/", &[("x-estimate", 100)]).await.status(), StatusCode::OK);
        assert_eq!(site.left("tokens", UNITS).await, UNITS, "{}", site.store.name);
        assert_eq!(site.left("failures", UNITS).await, UNITS - 100, "{}", site.store.name);
    }
}

/// The head makes only those final that go by it, in whatever order the limits are.
#[tokio::test]
async fn charge_that_is_settled_later_stays_open_after_the_head() {
    use throttle_tower::{MemoryBackend, ThrottleLayer};
    use tower::{Layer, ServiceExt};

    for later_first in [true, false] {
        let mut limits = [budget("tokens", UNITS).cost(9).settled_later(), budget("failures", UNITS).refund_failed()];
        if !later_first {
            limits.reverse();
        }
        let layer = ThrottleLayer::new(all(limits)).unwrap().backend(MemoryBackend::new()).unwrap();
        let inner = tower::service_fn(|request: http::Request<()>| async move {
            let mut response = http::Response::new(());
            response.extensions_mut().insert(request.extensions().get::<Usage>().unwrap().clone());
            Ok::<_, ()>(response)
        });
        let response = layer.layer(inner).oneshot(http::Request::new(())).await.unwrap();
        let usage = response.extensions().get::<Usage>().unwrap().clone();
        assert_eq!(usage.add("tokens", 4), Ok(true), "{later_first}");
        drop(response);
        assert!(usage.add("tokens", 4).is_err(), "{later_first}");
    }
}

/// Of an `any`, only the member that was charged is charged more; a limit that does not apply never is.
#[tokio::test]
async fn charge_of_a_member_that_was_not_charged_stays_zero() {
    for store in Store::both().await {
        let limits = all((
            any([
                budget("own", UNITS).cost(estimate).settled_later(),
                budget("pool", UNITS).cost(estimate).settled_later(),
            ]),
            budget("never", UNITS).cost(0).settled_later().when(|_| false),
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
        assert_eq!(site.get("/", &[("x-estimate", 100)]).await.status(), StatusCode::OK);
        let mut used = Vec::new();
        for name in ["own", "pool", "never"] {
            used.push(UNITS - site.left(name, UNITS).await);
        }
        assert_eq!(used, [300, 0, 0], "{}", site.store.name);
    }
}
