//! The stores of the tests' limits, and what remains there.

use std::time::Duration;

use throttle_core::PolicySet;
use throttle_core::backend::Call;
use throttle_core::{BoxBackend, Limiter, Policy};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;
use throttle_tower::{Constant, FixedWindow, Key, Limit, MemoryBackend, Rate, limit};

/// Long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) name: &'static str,
    pub(crate) backend: BoxBackend,
}

impl Store {
    pub(crate) fn memory() -> Self {
        Self {
            name: "memory",
            backend: BoxBackend::new(MemoryBackend::new()),
        }
    }

    pub(crate) async fn redis() -> Self {
        let shared = tokio::task::spawn_blocking(Shared::new).await.unwrap();
        Self {
            name: "redis",
            backend: BoxBackend::new(redis(&shared.url(), shared.prefix(), PATIENCE)),
        }
    }

    pub(crate) async fn both() -> [Self; 2] {
        [Self::memory(), Self::redis().await]
    }

    /// What remains of a budget that [`budget`] makes.
    pub(crate) async fn left(&self, name: &str, units: u64) -> u64 {
        let policy = Policy::new(name, window(units)).unwrap();
        let limiter = Limiter::new(self.backend.clone(), PolicySet::new(policy).unwrap()).unwrap();
        limiter
            .decide(&[Call::peek(Key::CONSTANT)])
            .await
            .unwrap()
            .remaining()
    }

    pub(crate) async fn used(&self, name: &str, units: u64) -> u64 {
        units - self.left(name, units).await
    }
}

pub(crate) fn redis(url: &str, prefix: &str, deadline: Duration) -> RedisBackend {
    RedisBackend::builder(Single::new(url).unwrap())
        .prefix(prefix)
        .deadline(deadline)
        .build()
        .unwrap()
}

/// A window that does not end during a test, so its use is the total of all charges.
fn window(units: u64) -> FixedWindow {
    FixedWindow::new(Rate::new(units, Duration::from_secs(3650 * 86_400)))
}

/// One budget for all requests together, for the whole test.
pub(crate) fn budget(name: &str, units: u64) -> Limit {
    limit(name, window(units)).by(Constant)
}
