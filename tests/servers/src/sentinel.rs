//! A master, its replica, and sentinels that watch them.

use std::time::Duration;

use redis::RedisResult;

use crate::builder::{Builder, Role};
use crate::server::Server;
use crate::wait::until;

/// How long the sentinels wait for an answer before they consider a server dead.
const DOWN_AFTER_MS: u32 = 1000;

/// A master with one replica, watched by one to three sentinels under the name [`Sentinel::NAME`].
#[derive(Debug)]
pub struct Sentinel {
    servers: [Server; 2],
    sentinels: Vec<Server>,
}

impl Sentinel {
    /// The name of the master among the sentinels.
    pub const NAME: &'static str = "limits";

    /// Starts all of them and returns when the replica is in step and every sentinel knows all
    /// others.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`, if `count` is not 1 to 3, or if they do not find each other
    /// within 30 seconds.
    #[must_use]
    pub fn start(count: usize) -> Self {
        Self::start_as(count, &Server::builder())
    }

    /// One sentinel, a master and a replica that speak TLS with each other, and demand a
    /// certificate of each client. All have the same certificates: [`Server::tls`].
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with_tls() -> Self {
        let server = Server::builder()
            .tls()
            .arg("--tls-auth-clients", "yes")
            .arg("--tls-replication", "yes");
        Self::start_as(1, &server)
    }

    fn start_as(count: usize, server: &Builder) -> Self {
        assert!((1..=3).contains(&count), "one to three sentinels");
        let master = server.clone().start();
        let master_port = master.tls_port().unwrap_or(master.port());
        let replica = server.clone().replica_of(master_port).start();
        let lines = format!(
            "sentinel monitor {name} 127.0.0.1 {port} {quorum}\n\
             sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {name} 5000\n",
            name = Self::NAME,
            port = master_port,
            quorum = count / 2 + 1,
        );
        let sentinels = (0..count)
            .map(|_| {
                let sentinel = server.clone();
                sentinel.role(Role::Sentinel(lines.clone())).start()
            })
            .collect::<Vec<_>>();
        let group = Self {
            servers: [master, replica],
            sentinels,
        };
        until(
            Duration::from_secs(30),
            "the sentinels to know the replica and each other",
            || {
                let in_step = group.servers[1].info("master_link_status") == "up";
                let known = group.sentinels.iter().all(|sentinel| {
                    let replicas: RedisResult<Vec<redis::Value>> =
                        sentinel.try_query(&["SENTINEL", "REPLICAS", Self::NAME]);
                    let others: RedisResult<Vec<redis::Value>> =
                        sentinel.try_query(&["SENTINEL", "SENTINELS", Self::NAME]);
                    replicas.is_ok_and(|list| list.len() == 1)
                        && others.is_ok_and(|list| list.len() == count - 1)
                });
                (in_step && known).then_some(())
            },
        );
        group
    }

    /// The URLs of the sentinels.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The two servers: at first the master, then its replica. They keep this order when they
    /// change roles.
    #[must_use]
    pub fn servers(&self) -> &[Server; 2] {
        &self.servers
    }

    /// The server that a running sentinel names as the master now.
    ///
    /// # Panics
    ///
    /// If no sentinel runs.
    #[must_use]
    pub fn master(&self) -> &Server {
        let sentinel = self
            .sentinels
            .iter()
            .find(|sentinel| sentinel.is_running())
            .expect("a running sentinel");
        let (_, port): (String, u16) =
            sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME]);
        self.servers
            .iter()
            .find(|server| server.port() == port)
            .expect("one of the two servers")
    }

    /// Waits until the sentinels have made another server than this one the master, and it accepts
    /// writes.
    ///
    /// # Panics
    ///
    /// If that takes more than 30 seconds.
    pub fn wait_for_failover_from(&self, old: &Server) -> &Server {
        until(Duration::from_secs(30), "another master", || {
            let master = self.master();
            (master.port() != old.port() && master.info("role") == "master").then_some(master)
        })
    }
}
