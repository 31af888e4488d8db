//! A backend of one server, which decides about many keys.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Backend, Key, PolicySet};
use throttle_redis::{RedisBackend, RedisSet, Single};
use throttle_test_servers::Server;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

pub(super) struct Client {
    runtime: Runtime,
    backend: RedisBackend,
    set: Arc<RedisSet>,
}

impl Client {
    /// Connects, and sends the script.
    pub(super) fn new(server: &Server, set: PolicySet) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let single = Single::new(&server.url()).expect("a URL");
        let backend = RedisBackend::builder(single)
            .deadline(Duration::from_secs(5))
            .build()
            .expect("valid options");
        let set = Arc::new(backend.prepare(set).expect("a set"));
        let client = Self {
            runtime,
            backend,
            set,
        };
        client.decide(0..1, 1);
        client
    }

    /// Decides once about each key, so many at the same time.
    pub(super) fn decide(&self, keys: Range<u64>, at_once: u64) {
        let policies = RedisBackend::set(&self.set).policies().len();
        let decide = |key: u64| {
            let calls = vec![Call::from(Key::from(key)); policies];
            self.backend.decide(&self.set, &calls)
        };
        self.runtime.block_on(async {
            let mut first = keys.start;
            while first < keys.end {
                let last = keys.end.min(first + at_once);
                let asked: JoinSet<_> = (first..last).map(decide).collect();
                for decision in asked.join_all().await {
                    assert!(decision.expect("a decision").is_admitted());
                }
                first = last;
            }
        });
    }
}
