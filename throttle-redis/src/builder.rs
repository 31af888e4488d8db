use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::backend::PolicyRegistry;
use throttle_core::{Clock, ConfigError, Timestamp};
use tokio::sync::Semaphore;

use crate::backend::RedisBackend;
use crate::keyspace::{Keyspace, Placement};
use crate::link::Link;
use crate::link::connection::{Connector, Single};
use crate::shared::{Options, Shared};
use crate::shortcut::Shortcut;

impl RedisBackend {
    /// One server, by one connection, with default options. See [`Single::new`] for the URL.
    ///
    /// Nothing is waited for: inside a tokio runtime the connection is opened in the background, outside of one with
    /// the first decision.
    ///
    /// # Errors
    ///
    /// If the URL cannot be read.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        Self::builder(Single::new(url)?).build()
    }

    /// Options of a backend, on any connection.
    pub fn builder(connector: impl Connector) -> RedisBuilder {
        RedisBuilder::new(Box::new(connector))
    }
}

/// Options of a [`RedisBackend`].
///
/// ```
/// use std::time::Duration;
/// use throttle_redis::{RedisBackend, Single};
///
/// let redis = || RedisBackend::builder(Single::new("redis://127.0.0.1:1").expect("a URL"));
/// assert!(redis().prefix("shop").deadline(Duration::from_millis(10)).build().is_ok());
/// let error = redis().deadline(Duration::ZERO).build().unwrap_err();
/// assert_eq!(error.field(), "deadline in milliseconds");
/// ```
#[must_use]
pub struct RedisBuilder {
    connector: Box<dyn Connector>,
    prefix: String,
    placement: Option<Placement>,
    secret: Option<Vec<u8>>,
    readable: bool,
    deadline: Duration,
    threshold: u32,
    merge: usize,
    queue: usize,
    slack: Duration,
    clock: Option<Box<dyn Fn() -> Timestamp + Send + Sync>>,
    refusals: usize,
}

impl RedisBuilder {
    pub(crate) fn new(connector: Box<dyn Connector>) -> Self {
        Self {
            connector,
            prefix: "throttle".to_owned(),
            placement: None,
            secret: None,
            readable: false,
            deadline: Duration::from_millis(25),
            threshold: 5,
            merge: 64,
            queue: 1024,
            slack: Duration::from_secs(10),
            clock: None,
            refusals: 0,
        }
    }

    /// What the names of all keys begin with: 1 to 64 printable ASCII characters other than space and braces. Backends
    /// with the same prefix and placement on the same database share their budgets. Defaults to `throttle`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Puts all keys into the hash slot of `tag` (as [`prefix`](Self::prefix), without braces): every set is decided in
    /// one atomic step, and one server of a cluster carries them all. Backends with different tags are on different
    /// slots. The default away from a cluster, with the tag `all`; a cluster asks for a choice.
    pub fn single_slot(mut self, tag: impl Into<String>) -> Self {
        self.placement = Some(Placement::SingleSlot(tag.into()));
        self
    }

    /// Puts each key into the hash slot it hashes to: the load is spread over a cluster. Policies that are keyed alike
    /// are still decided in one atomic step; others are reserved one by one, and given back exactly when one of them
    /// refuses. It never admits too much; under a race it may refuse early.
    pub fn per_key_slot(mut self) -> Self {
        self.placement = Some(Placement::PerKeySlot);
        self
    }

    /// The secret under which keys are digested (HMAC-SHA-256, 128 bits). Without it, a reader of the database cannot
    /// tell which keys they are. All processes that share budgets need the same secret. It defaults to the prefix,
    /// under which addresses, say, can be found by trying.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Writes keys readably instead of digested, with escapes; those longer than 160 characters are digested still. For
    /// debugging, and where keys need no protection. Defaults to digested.
    pub fn readable_keys(mut self) -> Self {
        self.readable = true;
        self
    }

    /// How long a decision may take, waiting for a connection, queueing and repetitions included; then it fails, at
    /// most 5 ms later. 1 ms to 10 s. Defaults to 25 ms.
    ///
    /// It also bounds what waits at the server: of all decisions about to be made, so many are sent at a time as keep
    /// the server busy for a quarter of the deadline. Others wait in this process.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Failures in a row, after which the store is not asked any more until it has given a sign of life; at least 1. On
    /// a cluster each sixteenth of the slots is counted by itself. Defaults to 5.
    ///
    /// A failure is an error of the connection or the server, or a call that the store does not answer within the
    /// deadline, counted from when the call was sent. A decision whose time is over while it waits in this process is
    /// not one; nor is an answer that a busy process reads late.
    pub fn breaker_threshold(mut self, failures: u32) -> Self {
        self.threshold = failures;
        self
    }

    /// Most decisions of a set in one script call, 1 to 64; 1 merges nothing. A call carries fewer where they would
    /// keep the server busy for more than about a millisecond, as those of large sliding logs do. On a cluster nothing
    /// is merged. Defaults to 64.
    pub fn merge(mut self, decisions: usize) -> Self {
        self.merge = decisions;
        self
    }

    /// Most decisions of a set that wait for a call; further ones fail at once, as
    /// [saturated](throttle_core::BackendErrorKind::Saturated). At least 1. Defaults to 1,024.
    pub fn queue(mut self, decisions: usize) -> Self {
        self.queue = decisions;
        self
    }

    /// How long a key is kept beyond the instant from which it is as good as unused, up to 60 s. A server's clock that
    /// steps back by less buys nothing. Defaults to 10 s.
    pub fn kept_beyond_reset(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    /// Tells the scripts this clock's time instead of the server's. For tests: processes do not agree on what time it
    /// is. Keys are then kept ten minutes beyond their reset, because the server expires them by its own clock.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Box::new(move || clock.now()));
        self
    }

    /// Keeps up to `most` refusals in this process, and answers with them for as long as they are true without asking
    /// the store. Exact for the same cost and greater ones. A refund or reset made by this backend clears them at once.
    /// What other processes do meanwhile is not seen until the wait is over: a refund or reset does not admit the
    /// request earlier, and a charge is not subtracted from what is left. Defaults to 0: none.
    pub fn deny_cache(mut self, most: usize) -> Self {
        self.refusals = most;
        self
    }

    /// The backend. Nothing is waited for: see [`RedisBackend::new`].
    ///
    /// # Errors
    ///
    /// If an option is out of bounds, or the store is a cluster and neither [`single_slot`](Self::single_slot) nor
    /// [`per_key_slot`](Self::per_key_slot) was chosen.
    pub fn build(self) -> Result<RedisBackend, ConfigError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        within("deadline in milliseconds", millis(self.deadline), 1, 10_000)?;
        within("decisions in one call", self.merge as u64, 1, 64)?;
        within("decisions that wait", self.queue as u64, 1, Semaphore::MAX_PERMITS as u64)?;
        within("failures to open", u64::from(self.threshold), 1, u64::from(u32::MAX))?;
        within("milliseconds kept beyond reset", millis(self.slack), 0, 60_000)?;
        let cluster = self.connector.is_cluster();
        let placement = match self.placement {
            Some(placement) => placement,
            None if !cluster => Placement::SingleSlot("all".to_owned()),
            None => {
                let rule = "on a cluster, choose .single_slot(tag) to decide every set in one atomic step on one server, \
                            or .per_key_slot() to use all servers and reserve each policy where its key is";
                return Err(ConfigError::new("placement of keys", "none", rule));
            }
        };
        let secret = self.secret.unwrap_or_else(|| self.prefix.clone().into_bytes());
        let keyspace = Keyspace::new(&self.prefix, placement, &secret, self.readable)?;
        let slack = if self.clock.is_some() { 600_000 } else { millis(self.slack) };
        let merge = if cluster { 1 } else { self.merge };
        let shared = Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            link: Link::new(self.connector, self.deadline, self.threshold),
            keyspace,
            options: Options { merge, queue: self.queue, slack: slack.to_string(), clock: self.clock },
            policies: PolicyRegistry::default(),
            shortcut: Shortcut::new(self.refusals),
        };
        Ok(RedisBackend { shared: Arc::new(shared) })
    }
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::new(field, value, format!("it must lie between {least} and {most}")))
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisBuilder");
        shown.field("prefix", &self.prefix).field("placement", &self.placement).field("deadline", &self.deadline);
        shown.finish_non_exhaustive()
    }
}
