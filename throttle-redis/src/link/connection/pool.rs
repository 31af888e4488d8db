use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bb8::ManageConnection;
use redis::{Client, ConnectionInfo, RedisError};
use throttle_core::ConfigError;

use super::end::End;
use super::multiplexed::{self, Multiplexed};
use super::single::client;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::translate::{CONNECT_TIMEOUT, connect_fault};
use super::{Command, Connection, Connector, Fault, FaultKind, Pending, Reply};

/// One server, over a few connections of a `bb8` pool.
///
/// A decision checks a connection out, clones it and gives it back at once, so no decision waits
/// for the answer of another. A connection is replaced when it has ended, or when a call on it
/// fails. Connections are not probed before use, because that would add a round trip to each
/// decision.
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
/// pool if you need several for another reason, such as a proxy that balances connections.
#[derive(Clone, Debug)]
pub struct Pool {
    info: ConnectionInfo,
    size: u32,
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

    fn of(client: &Client, size: u32) -> Self {
        Self {
            info: client.get_connection_info().clone(),
            size: size.max(1),
        }
    }

    /// A connection is opened when it is needed, and closed only if it broke or was idle for long.
    fn settings(&self) -> bb8::Builder<Keeper> {
        bb8::Pool::builder()
            .max_size(self.size)
            .connection_timeout(CONNECT_TIMEOUT)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(Some(Duration::from_secs(600)))
    }
}

impl Connector for Pool {
    fn connect(&self) -> Pending<Box<dyn Connection>> {
        let members = Arc::new(Members::default());
        let (keeper, pool) = (
            Keeper {
                info: self.info.clone(),
                members: Arc::clone(&members),
            },
            self.settings(),
        );
        Box::pin(async move {
            // The first connection shows whether there is a server; the pool itself would retry
            // without reporting why.
            let first = keeper
                .connect()
                .await
                .map_err(|error| connect_fault(&error))?;
            let pool = pool.build_unchecked(keeper);
            // The pool has room for it: the pool is empty and holds at least one.
            let _ = pool.add(first);
            Ok(Box::new(Kept { pool, members }) as Box<dyn Connection>)
        })
    }

    fn address(&self) -> Option<String> {
        Some(self.info.addr().to_string())
    }
}

fn not_sent(error: bb8::RunError<RedisError>) -> Fault {
    let message = match error {
        bb8::RunError::User(error) => connect_fault(&error).to_string(),
        bb8::RunError::TimedOut => "the pool has no connection to the server".to_owned(),
    };
    Fault::new(FaultKind::NotSent, message)
}

/// Manages connections that record whether they broke.
#[cfg_attr(test, derive(Debug))]
struct Keeper {
    info: ConnectionInfo,
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
        let config = multiplexed::config().set_response_timeout(Some(Duration::from_secs(60)));
        let connection = Multiplexed::open(self.info.clone(), config).await?;
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

    #[test]
    fn a_pool_has_at_least_one_connection() {
        for (size, most) in [(0, 1), (1, 1), (7, 7)] {
            assert_eq!(Pool::new("redis://host", size).expect("a URL").size, most);
        }
    }

    /// A connection that works is not replaced: the decision that meets the new one would wait
    /// until it is open.
    #[test]
    fn pool_keeps_used_connections_and_waits_a_second_for_a_new_one() {
        let shown = format!(
            "{:?}",
            Pool::new("redis://host", 7).expect("a URL").settings()
        );
        for setting in [
            "max_size: 7,",
            "min_idle: None,",
            "test_on_check_out: false,",
            "max_lifetime: None,",
            "idle_timeout: Some(600s),",
            &format!("connection_timeout: {CONNECT_TIMEOUT:?},"),
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
        assert_eq!((pool.size, pool.address().as_deref()), (5, Some("host:7")));
        assert!(!pool.is_cluster());
        let error = Pool::with_tls("redis://host", 5, &Tls::new()).expect_err("not of TLS");
        assert_eq!(error.field(), "TLS certificates");
    }
}
