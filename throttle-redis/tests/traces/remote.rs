//! A set on a real server, driven step by step.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{Backend, Decision, Key, ManualClock, PolicySet, Timestamp};
use throttle_redis::{RedisBackend, RedisSet, Single};
use throttle_test_servers::Shared;
use tokio::runtime::Runtime;

use crate::support::spec::Spec;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// A backend on the server that the binary shares.
pub(crate) struct Remote {
    pub(crate) shared: Shared,
    backend: RedisBackend,
    clock: ManualClock,
}

/// Whether the Redis backend accepts such a limit: it refuses larger logs when they are prepared.
pub(crate) fn is_taken(spec: &Spec) -> bool {
    !matches!(spec, Spec::Log { limit, .. } if *limit > 10_000)
}

/// A set of a backend.
pub(crate) struct Bench<'a> {
    remote: &'a Remote,
    pub(crate) prepared: Arc<RedisSet>,
}

impl Remote {
    pub(crate) fn new() -> Self {
        let (shared, clock) = (Shared::new(), ManualClock::default());
        let _inside = RUNTIME.enter();
        let single = Single::new(&shared.url()).expect("a URL");
        let builder = RedisBackend::builder(single)
            .prefix(shared.prefix())
            .clock(clock.clone());
        let backend = builder
            .deadline(Duration::from_secs(10))
            .build()
            .expect("valid options");
        Self {
            shared,
            backend,
            clock,
        }
    }

    pub(crate) fn bench(&self, set: PolicySet) -> Bench<'_> {
        Bench {
            remote: self,
            prepared: Arc::new(self.backend.prepare(set).expect("a set")),
        }
    }
}

impl Bench<'_> {
    pub(crate) fn set(&self) -> &PolicySet {
        RedisBackend::set(&self.prepared)
    }

    pub(crate) fn decide(&self, t: i64, calls: &[Call]) -> Decision {
        self.remote.clock.set(Timestamp::from_micros(t));
        RUNTIME
            .block_on(self.remote.backend.decide(&self.prepared, calls))
            .expect("a decision")
    }

    pub(crate) fn settle(&self, t: i64, receipt: Receipt) {
        self.remote.clock.set(Timestamp::from_micros(t));
        RUNTIME
            .block_on(self.remote.backend.settle(&self.prepared, receipt))
            .expect("settled");
    }

    /// Forgets a key, as the server does when the key expires.
    pub(crate) fn forget(&self, policy: usize, key: &Key) {
        RUNTIME
            .block_on(
                self.remote
                    .backend
                    .run(&self.prepared, policy, KeyStep::Reset(key.clone())),
            )
            .expect("forgotten");
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let eternal = self.shared.own_keys_without_ttl();
            assert!(
                eternal.is_empty(),
                "{} keys would stay for ever",
                eternal.len()
            );
        }
    }
}
