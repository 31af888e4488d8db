//! The kit on a cluster of six servers.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::conformance_tests;
use throttle_redis::{Cluster, RedisBackend, RedisBuilder};
use throttle_test_servers::Cluster as Servers;

use crate::fixture::{Fixture, harness};

static SERVERS: LazyLock<Servers> = LazyLock::new(Servers::start);
static NEXT: AtomicU64 = AtomicU64::new(0);

fn builder() -> RedisBuilder {
    let urls = SERVERS.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    RedisBackend::builder(cluster).prefix(format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

harness!(
    /// All keys in one slot: every law holds as in memory.
    Together, IS_ADAPTER = true;
    {
        // Several tags, so that all servers take part.
        let tag = format!("tag{}", NEXT.fetch_add(1, Ordering::Relaxed) % 97);
        Fixture::new(builder().single_slot(tag), None)
    }
);
harness!(
    /// Each key in a slot of its own: members of a composite are reserved one by one.
    Spread, ATOMIC_SETS = false;
    Fixture::new(builder().per_key_slot(), None)
);

harness!(
    /// Each key in the slot of its first part.
    ByFirstPart, ATOMIC_SETS = false, IS_ADAPTER = true;
    Fixture::new(builder().slot_by_first_part(), None)
);

mod together {
    use super::*;
    conformance_tests!(Together);
}

mod spread {
    use super::*;
    conformance_tests!(Spread);
}

mod by_first_part {
    use super::*;
    conformance_tests!(ByFirstPart);
}
