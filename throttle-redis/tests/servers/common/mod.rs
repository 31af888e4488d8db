//! Backends on the tests' own servers.

#![allow(dead_code, reason = "each test crate uses a part of this")]

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Cost, Decision, IntoAlgorithm, Key, Policy, PolicySet, PolicyTree};
use throttle_redis::{RedisBackend, RedisBuilder, RedisSet, Single};
use throttle_test_servers::Shared;

/// A backend on the server that all tests of the binary share. Its deadline is long, because these
/// tests do not measure how fast answers are.
pub(crate) fn builder(shared: &Shared) -> RedisBuilder {
    let single = Single::new(&shared.url()).expect("a URL");
    RedisBackend::builder(single)
        .prefix(shared.prefix())
        .deadline(Duration::from_secs(10))
}

pub(crate) fn policy(name: &str, algorithm: impl IntoAlgorithm) -> Policy {
    Policy::new(name, algorithm).expect("a policy")
}

/// Much longer than what these tests wait for takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The longest deadline that there is.
pub(crate) const LONGEST_DEADLINE: Duration = Duration::from_secs(10);

/// Calls `ask` until it returns true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let start = Instant::now();
    while !ask().await {
        assert!(
            start.elapsed() < PATIENCE,
            "waited {PATIENCE:?} in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One set on one backend.
pub(crate) struct LimitTree {
    pub(crate) backend: RedisBackend,
    pub(crate) prepared: Arc<RedisSet>,
}

impl LimitTree {
    pub(crate) fn new(backend: &RedisBackend, rule: impl Into<PolicyTree>) -> Self {
        let set = PolicySet::new(rule).expect("a set");
        let prepared = Arc::new(backend.prepare(set).expect("a set"));
        Self {
            backend: backend.clone(),
            prepared,
        }
    }

    pub(crate) fn calls(&self, key: &str, cost: u64) -> Vec<Call> {
        let key = Key::from(key);
        let call = Cost::new(cost).map_or_else(
            |_| Call::peek(key.clone()),
            |cost| Call::new(key.clone(), cost),
        );
        vec![call; RedisBackend::set(&self.prepared).policies().len()]
    }

    pub(crate) async fn take(&self, key: &str, cost: u64) -> Decision {
        self.backend
            .decide(&self.prepared, &self.calls(key, cost))
            .await
            .expect("a decision")
    }

    pub(crate) async fn left(&self, key: &str) -> u64 {
        self.take(key, 0).await.remaining()
    }

    pub(crate) async fn charge(&self, key: &str, cost: u64) -> Option<Receipt> {
        Receipt::of(&self.take(key, cost).await, &self.calls(key, cost))
    }

    pub(crate) async fn refund(&self, receipt: Receipt) {
        self.backend
            .settle(&self.prepared, receipt.actual(0))
            .await
            .expect("settled");
    }
}
