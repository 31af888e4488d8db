//! What the headers say of charges that change before the response.

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use throttle_tower::limit::LimitTree;
use throttle_tower::{Usage, all, any, limit};

use crate::site::Site;
use crate::store::{Store, budget};

/// What is left of each limit by the header of a response, and then at the store.
async fn left(store: Store, limits: LimitTree, app: Router, names: &[&str]) -> [Vec<u64>; 2] {
    let site = Site::new(store, limits, app).await;
    let response = site.get("/", &[]).await;
    let header = response.headers()["ratelimit"].to_str().unwrap();
    let of_header = |name: &&str| {
        let (_, rest) = header.split_once(&format!("\"{name}\";r=")).unwrap();
        rest.split_once(';').unwrap().0.parse().unwrap()
    };
    let stated = names.iter().map(of_header).collect();
    let mut stored = Vec::new();
    for name in names {
        stored.push(site.left(name, 20).await);
    }
    [stated, stored]
}

#[tokio::test]
async fn charge_settled_before_the_response_is_in_its_headers() {
    let settled = |name| budget(name, 20).settled_later();
    for redis in [false, true] {
        let settle = get(|usage: Usage| async move { usage.settle_all(4) });
        let add = get(|usage: Usage| async move {
            for _ in 0..3 {
                usage.add("own", 2).unwrap();
            }
        });
        for (limits, handler, names, expected) in [
            (all([settled("own")]), &settle, &["own"][..], &[16][..]),
            (
                all((settled("own"), budget("other", 20))),
                &settle,
                &["own", "other"],
                &[16, 19],
            ),
            (
                any([settled("own"), settled("pool")]),
                &settle,
                &["own", "pool"],
                &[16, 20],
            ),
            (
                all((settled("own"), budget("some", 20).when(|_| false))),
                &settle,
                &["own"],
                &[16],
            ),
            (all([settled("own")]), &add, &["own"], &[14]),
        ] {
            let store = match redis {
                true => Store::redis().await,
                false => Store::memory(),
            };
            let app = Router::new().route("/", handler.clone());
            let name = store.name;
            let [stated, stored] = left(store, limits.clone(), app, names).await;
            assert_eq!(
                (&*stated, &*stored),
                (expected, expected),
                "{name}: {limits:?}"
            );
        }
    }
}

/// Over a store a refund is under way, and may fail.
#[tokio::test]
async fn charge_given_back_before_the_response_is_in_its_headers_in_memory() {
    for (store, expected) in Store::both().await.into_iter().zip([20, 15]) {
        let app = || Router::new().route("/", get(|usage: Usage| async move { usage.refund() }));
        let limits = all([budget("own", 20).cost(5).settled_later()]);
        let [stated, stored] = left(store, limits, app(), &["own"]).await;
        assert_eq!((stated, stored), (vec![expected], vec![20]));
    }
    let app = Router::new().route("/", get(|| async { StatusCode::NOT_FOUND }));
    let limits = all([budget("own", 20).cost(5).refund_if(limit::failed)]);
    let [stated, stored] = left(Store::memory(), limits, app, &["own"]).await;
    assert_eq!((stated, stored), (vec![20], vec![20]));
}
