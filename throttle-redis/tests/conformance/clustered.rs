//! The kit on a cluster of six servers.

use std::future::Future;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::conformance::Harness;
use throttle_core::{Timestamp, conformance_tests};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder};
use throttle_test_servers::Cluster as Servers;

use crate::stand::Stand;

static SERVERS: LazyLock<Servers> = LazyLock::new(Servers::start);
static NEXT: AtomicU64 = AtomicU64::new(0);

fn builder() -> RedisBuilder {
    let urls = SERVERS.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    RedisBackend::builder(cluster).prefix(format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

macro_rules! harness {
    ($(#[$doc:meta])* $name:ident, atomic $atomic:literal, $place:expr) => {
        $(#[$doc])*
        pub(crate) struct $name(Stand);

        impl Harness for $name {
            type Backend = RedisBackend;

            const ATOMIC_SETS: bool = $atomic;

            fn start() -> Self {
                let place: fn(RedisBuilder) -> RedisBuilder = $place;
                Self(Stand::new(place(builder()), None))
            }

            fn backend(&self) -> RedisBackend {
                self.0.backend()
            }

            fn set_time(&self, now: Timestamp) {
                self.0.set_time(now);
            }

            fn block_on<F: Future>(&self, future: F) -> F::Output {
                Stand::block_on(future)
            }
        }
    };
}

harness!(
    /// All keys in one slot: every law holds as in memory.
    Together,
    atomic true,
    |builder| {
        // Several tags, so that all servers take part in the tests.
        let tag = format!("tag{}", NEXT.fetch_add(1, Ordering::Relaxed) % 97);
        builder.together(tag)
    }
);
harness!(
    /// Each key in a slot of its own: members of a composite are reserved one by one.
    Spread,
    atomic false,
    RedisBuilder::spread
);

mod together {
    use super::*;
    conformance_tests!(Together);
}

mod spread {
    use super::*;
    conformance_tests!(Spread);
}
