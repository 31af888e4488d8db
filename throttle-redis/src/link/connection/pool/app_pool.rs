//! Calls over the `bb8_redis` pool of an application.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::{self, AddError, PooledConnection};
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use super::super::translate::{connect_fault, fault, reply};
use super::super::{Command, Connection, ConnectionFuture, Fault, FaultKind, Reply};

/// How long a call waits for a connection before it checks whether the pool has any.
const PATIENCE: Duration = Duration::from_millis(2);

/// A call that nothing waits for any more ends after this time. The application's own timeout would
/// be shorter than many a deadline.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct AppPool {
    pool: bb8::Pool<RedisConnectionManager>,
    /// At most one connection is open outside of the pool.
    outside: Arc<Mutex<()>>,
}

/// A connection for one call, which is given back when this is dropped.
struct Checkout {
    connection: MultiplexedConnection,
    _member: Option<PooledConnection<'static, RedisConnectionManager>>,
    _outside: Option<OwnedMutexGuard<()>>,
}

impl AppPool {
    /// Checks that the server can be reached. The pool itself would not report why it cannot.
    pub(super) async fn connect(
        pool: bb8::Pool<RedisConnectionManager>,
    ) -> Result<Box<dyn Connection>, Fault> {
        let opened = pool.dedicated_connection().await;
        let mut opened = opened.map_err(|error| connect_fault(&error))?;
        ping(&mut opened).await?;
        let outside = Arc::default();
        Ok(Box::new(Self { pool, outside }))
    }

    /// Takes a connection that has just answered out of the pool.
    async fn check_out(self) -> Result<Checkout, Fault> {
        let mut getting = pin!(self.pool.get_owned());
        let mut member = loop {
            if let Ok(got) = timeout(PATIENCE, &mut getting).await {
                break got.map_err(not_sent)?;
            }
            if self.pool.state().connections == 0
                && let Ok(guard) = Arc::clone(&self.outside).try_lock_owned()
                && let Some(checkout) = self.open(guard).await?
            {
                return Ok(checkout);
            }
        };
        if !self.pool.config().test_on_check_out && ping(&mut member).await.is_err() {
            let opened = self.pool.dedicated_connection().await;
            *member = opened.map_err(|error| connect_fault(&error))?;
        }
        Ok(Checkout {
            connection: member.clone(),
            _member: Some(member),
            _outside: None,
        })
    }

    /// Opens a connection for a pool that has none. Returns it if the pool has no room for it,
    /// because the pool pauses before it opens one itself.
    async fn open(&self, guard: OwnedMutexGuard<()>) -> Result<Option<Checkout>, Fault> {
        let opened = self.pool.dedicated_connection().await;
        let opened = opened.map_err(|error| connect_fault(&error))?;
        Ok(match self.pool.add(opened) {
            Ok(()) => None,
            Err(AddError::NoCapacity(connection) | AddError::Broken(connection)) => {
                Some(Checkout {
                    connection,
                    _member: None,
                    _outside: Some(guard),
                })
            }
        })
    }
}

async fn ping(connection: &mut MultiplexedConnection) -> Result<(), Fault> {
    let answer = redis::cmd("PING").exec_async(connection).await;
    answer.map_err(|error| connect_fault(&error))
}

impl Connection for AppPool {
    fn call(&self, command: Command) -> ConnectionFuture<Reply> {
        let pool = self.clone();
        Box::pin(async move {
            // In a task of its own: a call that is given up would return a silent connection to the
            // pool before the check has failed.
            let checking_out = tokio::spawn(pool.check_out());
            let stopped = |_| Err(Fault::new(FaultKind::NotSent, "the runtime has ended"));
            let mut checkout = checking_out.await.unwrap_or_else(stopped)?;
            checkout.connection.set_response_timeout(RESPONSE_TIMEOUT);
            let answer = checkout.connection.send_packed_command(command.words());
            match answer.await {
                Ok(value) => reply(value),
                Err(error) => Err(fault(&error)),
            }
        })
    }
}

fn not_sent(error: bb8::RunError<RedisError>) -> Fault {
    let message = match error {
        bb8::RunError::User(error) => connect_fault(&error).to_string(),
        bb8::RunError::TimedOut => "the pool has no connection to the server".to_owned(),
    };
    Fault::new(FaultKind::NotSent, message)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
