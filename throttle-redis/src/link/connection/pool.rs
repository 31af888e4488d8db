mod app_pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::{self, ManageConnection};
use redis::{Client, ConnectionInfo, RedisError};
use throttle_core::ConfigError;

use super::end::End;
use super::multiplexed::{self, Multiplexed};
use super::single::client;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::translate::connect_fault;
use super::{Command, Connection, Connector, Fault, FaultKind, Pending, Reply};
use app_pool::AppPool;

/// One server, over a few connections of a `bb8` pool: [one of its own](Self::new), or
/// [the application's](Self::existing).
///
/// In a pool of its own, a decision checks a connection out, clones it and gives it back at once,
/// so no decision waits for the answer of another. A connection is replaced when it has ended, or
/// when a call on it fails. Connections are not probed before use, because that would add a round
/// trip to each decision.
///
/// ```
/// use throttle_redis::{Connector, Pool};
///
/// let pool = Pool::new("redis://:password@redis.internal:6380", 4)?;
/// assert_eq!(pool.address().as_deref(), Some("redis.internal:6380"));
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
///
/// One connection ([`Single`](super::Single)) is enough for all that one server can process. Use a
/// pool if you need several for another reason, such as a proxy that balances connections, or if
/// the application has one already.
#[derive(Clone, Debug)]
pub struct Pool(Source);

/// Where the connections come from.
#[derive(Clone, Debug)]
enum Source {
    Own {
        info: Box<ConnectionInfo>,
        size: u32,
    },
    App(bb8::Pool<RedisConnectionManager>),
}

impl Pool {
    /// Sets the server's URL and the maximum number of connections (at least 1); see
    /// [`Single::new`](super::Single::new) for the URL. Nothing connects yet.
    ///
    /// # Errors
    ///
    /// As [`Single::new`](super::Single::new).
    pub fn new(url: &str, size: u32) -> Result<Self, ConfigError> {
        Ok(Self::of(&client(url)?, size))
    }

    /// Like [`new`](Self::new), over TLS with your own certificates; the URL begins with
    /// `rediss://`.
    ///
    /// # Errors
    ///
    /// As [`Single::with_tls`](super::Single::with_tls).
    #[cfg(feature = "tls")]
    pub fn with_tls(url: &str, size: u32, tls: &Tls) -> Result<Self, ConfigError> {
        Ok(Self::of(
            &tls.client(client(url)?.get_connection_info().clone())?,
            size,
        ))
    }

    /// Decides over the `bb8_redis` pool that the application has. Server, credentials, TLS and the
    /// number of connections are those of the pool.
    ///
    /// ```no_run
    /// use bb8_redis::{RedisConnectionManager, bb8};
    /// use throttle_redis::{Pool, RedisBackend};
    ///
    /// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    /// let manager = RedisConnectionManager::new("redis://redis.internal")?;
    /// let pool = bb8::Pool::builder().max_size(8).build(manager).await?;
    /// let backend = RedisBackend::builder(Pool::existing(pool.clone())).build()?;
    /// // `pool` goes into the state of the application, `backend` into the layer.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # What it costs
    ///
    /// * Two round trips for each call, where [`new`](Self::new) needs one. `bb8_redis` does not
    ///   notice the end of a connection, so a connection is checked by `PING` before each call: by
    ///   the pool (`test_on_check_out`, the default), or by the backend if the pool does not.
    /// * A call has a connection for itself until the answer, as the application's commands have.
    ///   Decisions wait while all connections are in use, and those that wait travel together in
    ///   one call. A decision that waits beyond its deadline fails like one whose answer is late.
    ///   If the application holds connections for long, give the pool more of them.
    /// * If a connection ends without a word, the check fails only after 500 ms, the response
    ///   timeout of the `redis` crate. Decisions that need that connection fail until then.
    /// * While the pool has no connection at all, a call opens one outside of the pool, because
    ///   `bb8` pauses for seconds after failures.
    #[must_use]
    pub fn existing(pool: bb8::Pool<RedisConnectionManager>) -> Self {
        Self(Source::App(pool))
    }

    fn of(client: &Client, size: u32) -> Self {
        Self(Source::Own {
            info: Box::new(client.get_connection_info().clone()),
            size: size.max(1),
        })
    }
}

/// A connection is opened when it is needed, and closed only if it broke or was idle for long.
fn settings(size: u32, timeout: Duration) -> bb8::Builder<Keeper> {
    bb8::Pool::builder()
        .max_size(size)
        .connection_timeout(timeout)
        .test_on_check_out(false)
        .max_lifetime(None)
        .idle_timeout(Some(Duration::from_secs(600)))
}

impl Connector for Pool {
    fn connect(&self, timeout: Duration) -> Pending<Box<dyn Connection>> {
        let (info, size) = match &self.0 {
            Source::Own { info, size } => (ConnectionInfo::clone(info), *size),
            Source::App(pool) => return Box::pin(AppPool::connect(pool.clone())),
        };
        let members = Arc::new(Members::default());
        let keeper = Keeper {
            info,
            timeout,
            members: Arc::clone(&members),
        };
        Box::pin(async move {
            // The first connection shows whether there is a server; the pool itself would retry
            // without reporting why.
            let first = keeper
                .connect()
                .await
                .map_err(|error| connect_fault(&error))?;
            let pool = settings(size, timeout).build_unchecked(keeper);
            // The pool has room for it: the pool is empty and holds at least one.
            let _ = pool.add(first);
            Ok(Box::new(Kept { pool, members }) as Box<dyn Connection>)
        })
    }

    fn address(&self) -> Option<String> {
        match &self.0 {
            Source::Own { info, .. } => Some(info.addr().to_string()),
            Source::App(_) => None,
        }
    }
}

fn not_sent(error: bb8::RunError<RedisError>) -> Fault {
    let message = match error {
        bb8::RunError::User(error) => connect_fault(&error).to_string(),
        bb8::RunError::TimedOut => "the pool has no connection to the server".to_owned(),
    };
    Fault::new(FaultKind::NotSent, message)
}

/// Manages connections that record whether they broke. With the manager of `bb8_redis`, which does
/// not notice that a connection has ended, each call would need a `PING` before it.
#[cfg_attr(test, derive(Debug))]
struct Keeper {
    info: ConnectionInfo,
    timeout: Duration,
    members: Arc<Members>,
}

/// The open connections of a pool. The pool has ended when the last one has.
#[derive(Default)]
#[cfg_attr(test, derive(Debug))]
struct Members {
    open: AtomicUsize,
    end: End,
}

impl Members {
    fn note(members: &Arc<Self>, opened: &Multiplexed) {
        members.open.fetch_add(1, Ordering::AcqRel);
        let members = Arc::clone(members);
        opened.end.then(Box::new(move || {
            if members.open.fetch_sub(1, Ordering::AcqRel) == 1 {
                members.end.come();
            }
        }));
    }
}

#[cfg_attr(test, derive(Debug))]
struct Member {
    connection: Multiplexed,
    broken: Arc<AtomicBool>,
}

impl Member {
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed) || self.connection.end.has_come()
    }
}

impl ManageConnection for Keeper {
    type Connection = Member;
    type Error = RedisError;

    async fn connect(&self) -> Result<Member, RedisError> {
        let connection = Multiplexed::open_within(self.info.clone(), self.timeout).await?;
        Members::note(&self.members, &connection);
        Ok(Member {
            connection,
            broken: Arc::default(),
        })
    }

    async fn is_valid(&self, _: &mut Member) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, kept: &mut Member) -> bool {
        kept.is_broken()
    }
}

struct Kept {
    pool: bb8::Pool<Keeper>,
    members: Arc<Members>,
}

impl Connection for Kept {
    fn call(&self, command: Command) -> Pending<Reply> {
        if self.members.end.has_come() {
            return Box::pin(std::future::ready(Err(multiplexed::ended())));
        }
        let pool = self.pool.clone();
        Box::pin(async move {
            let (connection, broken) = loop {
                let kept = pool.get().await.map_err(not_sent)?;
                if !kept.is_broken() {
                    break (kept.connection.clone(), Arc::clone(&kept.broken));
                }
                // The pool discards it when it is returned.
            };
            let answer = connection.call(command).await;
            if let Err(fault) = &answer
                && matches!(
                    fault.kind(),
                    FaultKind::Lost | FaultKind::NotSent | FaultKind::ReadOnly
                )
            {
                broken.store(true, Ordering::Relaxed);
            }
            answer
        })
    }

    fn on_end(&self, notify: Box<dyn FnOnce() + Send>) {
        self.members.end.then(notify);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(pool: &Pool) -> u32 {
        match pool.0 {
            Source::Own { size, .. } => size,
            Source::App(_) => panic!("the application's pool"),
        }
    }

    #[test]
    fn a_pool_has_at_least_one_connection() {
        for (asked, most) in [(0, 1), (1, 1), (7, 7)] {
            let pool = Pool::new("redis://host", asked).expect("a URL");
            assert_eq!(size(&pool), most);
        }
    }

    /// A connection that works is not replaced: the decision that meets the new one would wait
    /// until it is open.
    #[test]
    fn pool_keeps_used_connections_and_waits_the_connect_timeout_for_a_new_one() {
        let shown = format!("{:?}", settings(7, Duration::from_secs(3)));
        for setting in [
            "max_size: 7,",
            "min_idle: None,",
            "test_on_check_out: false,",
            "max_lifetime: None,",
            "idle_timeout: Some(600s),",
            "connection_timeout: 3s,",
        ] {
            assert!(shown.contains(setting), "{setting} {shown}");
        }
    }

    #[test]
    fn connections_of_a_pool_are_as_prompt_as_a_single_one() {
        let pool = Pool::new("redis://user:secret@host:7/3", 4).expect("a URL");
        let shown = format!("{pool:?}");
        assert!(
            shown.contains("nodelay: true") && !shown.contains("secret"),
            "{shown}"
        );
    }

    /// The decision was not sent, so it is not charged.
    #[test]
    fn a_pool_without_a_connection_has_sent_nothing() {
        assert!(not_sent(bb8::RunError::TimedOut).did_not_run());
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(not_sent(bb8::RunError::User(reset.into())).did_not_run());
    }

    #[test]
    fn a_fault_of_a_pool_says_what_is_missing() {
        assert_eq!(
            not_sent(bb8::RunError::TimedOut).to_string(),
            "the pool has no connection to the server"
        );
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "nobody listens");
        let fault = not_sent(bb8::RunError::User(refused.into()));
        assert_eq!(fault.kind(), &FaultKind::NotSent);
        assert!(fault.to_string().contains("nobody listens"), "{fault}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_pool_over_tls_is_as_large_and_at_the_same_address() {
        let pool =
            Pool::with_tls("rediss://user:secret@host:7", 5, &Tls::new()).expect("a URL of TLS");
        assert_eq!(
            (size(&pool), pool.address().as_deref()),
            (5, Some("host:7"))
        );
        assert!(pool.cluster().is_empty());
        let error = Pool::with_tls("redis://host", 5, &Tls::new()).expect_err("not of TLS");
        assert_eq!(error.field(), "TLS certificates");
    }
}
