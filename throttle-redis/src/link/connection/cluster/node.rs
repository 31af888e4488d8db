//! The connection to one server of a cluster, which is opened again when it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{ConnectionAddr, ConnectionInfo};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::super::multiplexed::Multiplexed;
use super::super::slot_map::SlotMap;
use super::super::translate::connect_fault;
use super::super::{Command, Connection, Fault, FaultKind, Reply, Route};

/// A connection has fallen silent if a command has waited for this long and nothing has arrived
/// since: the answer may be late, but the connection may also have ended without a word.
const SILENCE: Duration = Duration::from_millis(20);
/// A connection younger than this is not replaced because it is silent.
const YOUNG: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) struct Node(Arc<Inner>);

struct Inner {
    info: ConnectionInfo,
    /// How long a connection may take to open, or the server to list the slots.
    timeout: Duration,
    opened: ArcSwapOption<Opened>,
    /// How and when the last attempt to open it failed. Locked during an attempt.
    failed: Mutex<Option<(Instant, Fault)>>,
}

/// A connection, and whether its server answers.
pub(super) struct Opened {
    connection: Multiplexed,
    at: Instant,
    /// How many microseconds after its opening the first command was sent of those that are
    /// unanswered, if nothing has arrived since; 0 if there is none.
    waiting_since: AtomicU64,
}

impl Opened {
    fn is_usable(&self) -> bool {
        let age = self.at.elapsed();
        let is_silent = match self.waiting_since.load(Ordering::Relaxed) {
            0 => false,
            since => age > YOUNG && age > Duration::from_micros(since) + SILENCE,
        };
        !is_silent && !self.connection.end.has_come()
    }

    fn note_sent(&self) {
        if self.waiting_since.load(Ordering::Relaxed) == 0 {
            let micros = u64::try_from(self.at.elapsed().as_micros())
                .unwrap_or(u64::MAX)
                .max(1);
            self.waiting_since.store(micros, Ordering::Relaxed);
        }
    }
}

impl Node {
    pub(super) fn new(info: ConnectionInfo, timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            info,
            timeout,
            opened: ArcSwapOption::empty(),
            failed: Mutex::default(),
        }))
    }

    /// Whether there is a connection that has neither ended nor fallen silent.
    pub(super) fn is_open(&self) -> bool {
        self.0
            .opened
            .load()
            .as_ref()
            .is_some_and(|opened| opened.is_usable())
    }

    /// Sends one command. `ASKING` applies only to the next command of a connection that many calls
    /// share, so the two are sent together.
    pub(super) async fn call(&self, command: Command) -> Result<Reply, Fault> {
        let opened = self.opened().await?;
        opened.note_sent();
        let answer = match command.route() {
            Route::Address { asking: true, .. } => opened.connection.ask(&command).await,
            _ => opened.connection.call(command).await,
        };
        // An error of the server has arrived, too.
        opened.waiting_since.store(0, Ordering::Relaxed);
        if answer
            .as_ref()
            .is_err_and(|fault| matches!(fault.kind(), FaultKind::Lost | FaultKind::NotSent))
        {
            // In RESP2 nothing else says so.
            opened.connection.end.come();
        }
        answer
    }

    /// Asks which server has which slots.
    pub(super) async fn slots(&self) -> Result<SlotMap, Fault> {
        let call = self.call(Command::new("CLUSTER").arg("SLOTS"));
        let late = |_| {
            Err(Fault::new(
                FaultKind::NotSent,
                "a server of the cluster does not list its slots",
            ))
        };
        let asked = match self.0.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        };
        let slots = SlotMap::read(
            timeout(self.0.timeout, call).await.unwrap_or_else(late)?,
            asked,
        );
        let slots = slots.filter(|slots| !slots.servers().is_empty());
        slots.ok_or_else(|| {
            Fault::new(
                FaultKind::NotNow,
                "a server of the cluster knows none that has slots",
            )
        })
    }

    /// Returns the connection. Opens it in a task of its own, because the command that waits may be
    /// given up.
    pub(super) async fn opened(&self) -> Result<Arc<Opened>, Fault> {
        let old = self.0.opened.load_full();
        if let Some(opened) = old.as_ref().filter(|opened| opened.is_usable()) {
            return Ok(Arc::clone(opened));
        }
        let node = self.clone();
        let opening = tokio::spawn(async move { node.open_again(old).await });
        let stopped = |_| Err(Fault::new(FaultKind::NotSent, "the runtime has ended"));
        opening.await.unwrap_or_else(stopped)
    }

    /// Commands that find the same connection ended share an attempt, and its failure.
    async fn open_again(&self, old: Option<Arc<Opened>>) -> Result<Arc<Opened>, Fault> {
        let began = Instant::now();
        let mut failed = self.0.failed.lock().await;
        if let Some(current) = self.0.opened.load_full()
            && old.is_none_or(|old| !Arc::ptr_eq(&current, &old))
        {
            return Ok(current);
        }
        if let Some((at, fault)) = &*failed
            && *at >= began
        {
            return Err(fault.clone());
        }
        match Multiplexed::open_within(self.0.info.clone(), self.0.timeout).await {
            Ok(connection) => {
                let opened = Arc::new(Opened {
                    connection,
                    at: Instant::now(),
                    waiting_since: AtomicU64::new(0),
                });
                self.0.opened.store(Some(Arc::clone(&opened)));
                self.watch(&opened);
                Ok(opened)
            }
            Err(error) => {
                let fault = connect_fault(&error).of(self.0.info.addr());
                *failed = Some((Instant::now(), fault.clone()));
                Err(fault)
            }
        }
    }

    /// Opens the connection again as soon as it has ended, if it is still in use. One that ends
    /// young is opened by the next command: a server that accepts connections and ends them is not
    /// called in a loop.
    fn watch(&self, opened: &Arc<Opened>) {
        let (inner, ended) = (Arc::downgrade(&self.0), Arc::downgrade(opened));
        opened.connection.end.then(Box::new(move || {
            let (Some(inner), Some(ended), Ok(runtime)) =
                (inner.upgrade(), ended.upgrade(), Handle::try_current())
            else {
                return;
            };
            if ended.at.elapsed() >= YOUNG {
                tracing::debug!(
                    "a connection to a server of the cluster has ended; it is opened again"
                );
                runtime.spawn(async move { drop(Self(inner).open_again(Some(ended)).await) });
            }
        }));
    }
}
