//! An axum app that limits over the `bb8_redis` pool in its state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Router, body::Body};
use bb8_redis::{RedisConnectionManager, bb8, redis};
use http::{Request, StatusCode};
use throttle_redis::{Pool, RedisBackend};
use throttle_test_servers::Server;
use throttle_tower::{Constant, FixedWindow, OnError, Rate, ThrottleLayer, limit};
use tokio::task::JoinSet;
use tower::ServiceExt;

type RedisPool = bb8::Pool<RedisConnectionManager>;

/// Counts visits over a connection of its own pool.
async fn visit(State(pool): State<RedisPool>) -> String {
    let mut connection = pool.get().await.unwrap();
    let visits: u64 = redis::cmd("INCR")
        .arg("visits")
        .query_async(&mut *connection)
        .await
        .unwrap();
    visits.to_string()
}

/// A hundred requests at the same time. Returns how many were admitted.
async fn hundred(app: &Router) -> u32 {
    let (mut asking, admitted) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
    for _ in 0..100 {
        let (app, admitted) = (app.clone(), Arc::clone(&admitted));
        asking.spawn(async move {
            let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
            match response.status() {
                StatusCode::OK => admitted.fetch_add(1, Ordering::Relaxed),
                status => {
                    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
                    0
                }
            }
        });
    }
    asking.join_all().await;
    admitted.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_pool_of_one_connection_serves_the_app_and_its_limits() {
    let server = Server::start();
    let manager = RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder()
        .max_size(1)
        .build(manager)
        .await
        .unwrap();
    let redis = RedisBackend::builder(Pool::existing(pool.clone()));
    let redis = redis.deadline(Duration::from_secs(10)).build().unwrap();
    // A decision that fails would be a 503.
    let per_day = limit("p", FixedWindow::new(Rate::per_day(130))).by(Constant);
    let layer = ThrottleLayer::builder(per_day.on_error(OnError::Closed))
        .backend(redis.clone())
        .build()
        .unwrap();
    let app = Router::new().route("/", get(visit)).layer(layer);
    let app = app.with_state(pool.clone());
    assert_eq!(hundred(&app).await, 100);
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert_eq!(hundred(&app).await, 30);
    assert_eq!(server.query::<u64>(&["GET", "visits"]), 130);
    assert_eq!((redis.stats().failures, pool.state().connections), (0, 1));
}
