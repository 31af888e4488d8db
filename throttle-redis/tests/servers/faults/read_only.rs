//! A master that becomes a replica while all connections to it stay open: only its answers show
//! that it is the wrong server.

use std::time::Duration;

use throttle_core::Backend;
use throttle_redis::{Connector, Pool, RedisBackend, Single};
use throttle_test_servers::{Proxy, Server};

use super::{LIMIT, window};
use crate::common::{LimitTree, until};

/// An address that leads new connections to the current master; existing connections stay where
/// they are.
async fn follows_the_master(connector: impl FnOnce(&str) -> Box<dyn Connector>) {
    let (old, new) = (Server::start(), Server::start());
    let address = Proxy::start(old.port());
    let backend =
        RedisBackend::builder(Boxed(connector(&address.url()))).deadline(Duration::from_secs(1));
    let limits = LimitTree::new(&backend.build().expect("valid options"), window("one"));
    assert_eq!(limits.take("ada", 1).await.remaining(), LIMIT - 1);
    let connections = address.connections();
    address.retarget(new.port());
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    assert_eq!(
        address.open_connections() as u64,
        connections,
        "no connection was closed"
    );
    until("a decision of the new master", || async {
        limits
            .backend
            .decide(&limits.prepared, &limits.calls("ada", 1))
            .await
            .is_ok()
    })
    .await;
    assert_eq!(limits.left("ada").await, LIMIT - 1, "it begins anew");
    assert_eq!((new.dbsize(), new.info("role").as_str()), (1, "master"));
    let stats = limits.backend.stats();
    assert_eq!((stats.unknown, stats.connections), (0, 2), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_answers_readonly_is_replaced() {
    follows_the_master(|url| Box::new(Single::new(url).expect("a URL"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_answers_readonly_is_replaced() {
    follows_the_master(|url| Box::new(Pool::new(url, 3).expect("a URL"))).await;
}

struct Boxed(Box<dyn Connector>);

impl Connector for Boxed {
    fn connect(
        &self,
        timeout: Duration,
    ) -> throttle_redis::ConnectionFuture<Box<dyn throttle_redis::Connection>> {
        self.0.connect(timeout)
    }
}
