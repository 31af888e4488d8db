//! The connection of a cluster's client to one server, which is opened again when it has ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, Value,
};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::super::multiplexed::Multiplexed;

/// A connection has fallen silent if a command has waited for this long and nothing has arrived since: the answer may be
/// late, but the connection may also have ended without a word.
const SILENCE: Duration = Duration::from_millis(20);
/// A connection younger than this is not replaced because it is silent.
const YOUNG: Duration = Duration::from_millis(500);

/// The client of the cluster knows nothing of the ends of its connections: it would look for the slots at every server,
/// and serve no request meanwhile.
#[derive(Clone)]
pub(super) struct Node(Arc<Inner>);

struct Inner {
    info: ConnectionInfo,
    config: AsyncConnectionConfig,
    opened: ArcSwap<Opened>,
    /// How and when the last attempt to open it again failed. Locked during an attempt.
    failed: Mutex<Option<(Instant, RedisError)>>,
}

/// A connection, and whether its server answers.
struct Opened {
    connection: Multiplexed,
    at: Instant,
    /// How many microseconds after its opening the first command was sent of those that are unanswered, if nothing has
    /// arrived since; 0 if there is none.
    waiting_since: AtomicU64,
}

impl Opened {
    fn new(connection: Multiplexed) -> Arc<Self> {
        Arc::new(Self { connection, at: Instant::now(), waiting_since: AtomicU64::new(0) })
    }

    fn has_ended(&self) -> bool {
        self.connection.end.has_come()
    }

    fn is_silent(&self, age: Duration) -> bool {
        match self.waiting_since.load(Ordering::Relaxed) {
            0 => false,
            since => age > YOUNG && age > Duration::from_micros(since) + SILENCE,
        }
    }

    fn note_sent(&self, age: Duration) {
        if self.waiting_since.load(Ordering::Relaxed) == 0 {
            let micros = u64::try_from(age.as_micros()).unwrap_or(u64::MAX).max(1);
            self.waiting_since.store(micros, Ordering::Relaxed);
        }
    }

    fn note_arrived(&self) {
        self.waiting_since.store(0, Ordering::Relaxed);
    }
}

impl Node {
    /// The connection to send one command by.
    async fn opened(&self) -> Result<Arc<Opened>, RedisError> {
        let opened = self.0.opened.load_full();
        let age = opened.at.elapsed();
        if opened.has_ended() || opened.is_silent(age) {
            return self.again(opened).await;
        }
        opened.note_sent(age);
        Ok(opened)
    }

    /// Opens the connection again in a task of its own, because the command that waits may be given up.
    async fn again(&self, old: Arc<Opened>) -> Result<Arc<Opened>, RedisError> {
        let node = self.clone();
        let opening = tokio::spawn(async move { node.open_again(&old).await });
        let stopped = |_| Err(RedisError::from((ErrorKind::ClusterConnectionNotFound, "the runtime has ended")));
        let opened = opening.await.unwrap_or_else(stopped)?;
        opened.note_sent(opened.at.elapsed());
        Ok(opened)
    }

    /// Commands that find the same connection ended share an attempt, and its failure.
    async fn open_again(&self, old: &Arc<Opened>) -> Result<Arc<Opened>, RedisError> {
        let began = Instant::now();
        let mut failed = self.0.failed.lock().await;
        let current = self.0.opened.load_full();
        if !Arc::ptr_eq(&current, old) {
            return Ok(current);
        }
        if let Some((at, error)) = &*failed
            && *at >= began
        {
            return Err(error.clone());
        }
        match Multiplexed::open(self.0.info.clone(), self.0.config.clone()).await {
            Ok(connection) => {
                let opened = Opened::new(connection);
                self.put_in_use(&opened);
                Ok(opened)
            }
            Err(error) => {
                let error = unreached(error);
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    fn put_in_use(&self, opened: &Arc<Opened>) {
        self.0.opened.store(Arc::clone(opened));
        self.watch(opened);
    }

    /// Opens the connection again as soon as it has ended, if it is still in use. One that ends young is opened by the
    /// next command: a server that accepts connections and ends them is not called in a loop.
    fn watch(&self, opened: &Arc<Opened>) {
        let (inner, ended) = (Arc::downgrade(&self.0), Arc::downgrade(opened));
        opened.connection.end.then(Box::new(move || {
            let (Some(inner), Some(ended), Ok(runtime)) = (inner.upgrade(), ended.upgrade(), Handle::try_current())
            else {
                return;
            };
            if ended.at.elapsed() < YOUNG {
                return;
            }
            tracing::debug!("a connection to a server of the cluster has ended; it is opened again");
            let node = Self(inner);
            runtime.spawn(async move { drop(node.open_again(&ended).await) });
        }));
    }
}

impl Connect for Node {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        Box::pin(async move {
            let info = info.into_connection_info()?;
            let opened = Opened::new(Multiplexed::open(info.clone(), config.clone()).await?);
            let (opened, first) = (ArcSwap::new(Arc::clone(&opened)), opened);
            let node = Self(Arc::new(Inner { info, config, opened, failed: Mutex::default() }));
            node.watch(&first);
            Ok(node)
        })
    }
}

impl ConnectionLike for Node {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let opened = self.opened().await?;
            let answer = connection_of(&opened).send_packed_command(cmd).await;
            note(&opened, &answer);
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let opened = self.opened().await?;
            let answers = connection_of(&opened).send_packed_commands(cmd, offset, count).await;
            note(&opened, &answers);
            answers
        })
    }

    fn get_db(&self) -> i64 {
        self.0.info.redis_settings().db()
    }
}

/// However connecting failed, no command was sent.
fn unreached(error: RedisError) -> RedisError {
    match error.kind() {
        ErrorKind::Io => io::Error::new(io::ErrorKind::ConnectionRefused, error.to_string()).into(),
        _ => error,
    }
}

fn connection_of(opened: &Opened) -> MultiplexedConnection {
    opened.connection.connection.clone()
}

/// An error of the server has arrived, too. The client's own limit of time has not.
fn note<T>(opened: &Opened, answer: &Result<T, RedisError>) {
    if !answer.as_ref().is_err_and(RedisError::is_timeout) {
        opened.note_arrived();
    }
}
