use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::{Clock, ConfigError, Timestamp};
use tokio::sync::Semaphore;

use crate::backend::RedisBackend;
use crate::counters::{Counters, Reporter};
use crate::decide::settle::MOST_SETTLEMENTS;
use crate::keyspace::{Keyspace, Placement};
use crate::link::connection::{Connector, Single};
use crate::link::{CONNECT, CORRECTION, Deadlines};
use crate::links::Links;
#[cfg(feature = "metrics")]
use crate::series::Series;
use crate::shared_backend::{Options, SharedBackend};
use crate::shortcut::Shortcut;

impl RedisBackend {
    /// Connects to one server over one connection, with default options. See [`Single::new`] for
    /// the URL.
    ///
    /// It returns without waiting. Inside a tokio runtime the connection is opened in the
    /// background; outside of one, the first decision opens it.
    ///
    /// # Errors
    ///
    /// If the URL cannot be read.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        Self::builder(Single::new(url)?).build()
    }

    /// Starts a builder with options, for any connector.
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
    connect_timeout: Option<Duration>,
    correction_deadline: Duration,
    threshold: u32,
    max_batch: usize,
    queue: usize,
    slack: Duration,
    clock: Option<Box<dyn Fn() -> Timestamp + Send + Sync>>,
    refusals: usize,
    reporter: Option<Box<dyn Reporter>>,
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
            connect_timeout: None,
            correction_deadline: CORRECTION,
            threshold: 5,
            max_batch: 64,
            queue: 1024,
            slack: Duration::from_secs(10),
            clock: None,
            refusals: 0,
            reporter: None,
        }
    }

    /// Sets the prefix of all key names: 1 to 64 printable ASCII characters other than space and
    /// braces. Backends with the same prefix and placement on the same database share their
    /// budgets. Defaults to `throttle`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Puts all keys into the hash slot of `tag`, which has the syntax of [`prefix`](Self::prefix).
    /// Every set is decided in one atomic step, and one server of a cluster holds all keys.
    /// Backends with different tags use different slots. Without a cluster this is the default,
    /// with the tag `all`; a cluster requires a choice.
    pub fn single_slot(mut self, tag: impl Into<String>) -> Self {
        self.placement = Some(Placement::SingleSlot(tag.into()));
        self
    }

    /// Puts each key into its own hash slot, so that the load is spread over a cluster. Policies
    /// with the same key are still decided in one atomic step. Policies with different keys are
    /// charged separately; if one of them refuses, the units of the others are given back exactly.
    /// No limit is exceeded. A request may be refused although there was room, while another
    /// request holds units that it then gives back.
    pub fn per_key_slot(mut self) -> Self {
        self.placement = Some(Placement::PerKeySlot);
        self
    }

    /// Puts each key into the hash slot of its first part, so that the load is spread over a
    /// cluster by customer. If the customer is the first part of several policies' keys, such as
    /// `(tenant)`, `(tenant, user)` and `(tenant, route)`, these policies are decided in one atomic
    /// step and one call, and decisions about one customer share calls. A key of one part has a
    /// slot of its own. A set whose keys begin with different parts is decided as with
    /// [`per_key_slot`](Self::per_key_slot).
    ///
    /// The slot follows from the key, so no choice of keys makes a limit inexact. But all keys with
    /// one first part are on one server: the load of a customer cannot exceed what one server
    /// decides, and a first part that is the same for all, such as a route, puts all keys on one
    /// server.
    ///
    /// ```
    /// use throttle_redis::{RedisBackend, Single};
    ///
    /// let redis = Single::new("redis://127.0.0.1:1")?;
    /// let builder = RedisBackend::builder(redis).slot_by_first_part();
    /// assert!(format!("{builder:?}").contains("ByFirstPart"));
    /// # Ok::<_, throttle_core::ConfigError>(())
    /// ```
    pub fn slot_by_first_part(mut self) -> Self {
        self.placement = Some(Placement::ByFirstPart);
        self
    }

    /// Sets the secret of the key digests (SipHash-2-4, 128 bits). Without the secret, the keys
    /// cannot be recovered from the database, and no client can choose keys with the same digest.
    /// All processes that share budgets need the same secret. Defaults to the prefix, which is no
    /// secret: guessable keys, such as addresses, can then be found by trying all.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Stores keys as readable, escaped text instead of digests; keys longer than 160 characters
    /// are still digested. Use it for debugging, or where keys need no protection. Defaults to
    /// digests.
    pub fn readable_keys(mut self) -> Self {
        self.readable = true;
        self
    }

    /// Sets how long a decision may take, including waits for a connection, queueing and retries.
    /// After that it fails, at most 5 ms late. From 1 ms to 10 s; defaults to 25 ms.
    ///
    /// The deadline also bounds the queue at the server. At most as many decisions are in flight as
    /// the server processes in a quarter of the deadline; others wait in this process. On a
    /// cluster, this holds for each server.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how long an attempt to connect may take, from TCP to the first command. After that,
    /// another attempt begins. From 1 ms to 60 s; defaults to 1 s, or to the
    /// [deadline](Self::deadline) if that is longer.
    ///
    /// An attempt takes two round trips for one server, three for the list of a cluster's servers
    /// (then two for each of them), and six for a master that Sentinels name. TLS adds one or two
    /// for each connection, and a proxy without RESP3 doubles them. A decision waits for a
    /// connection within its own deadline, however long an attempt may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets how long a correction may take: a settlement, a refund or a strike, and the answer to a
    /// decision whose request was dropped. No request waits for it, so it may take longer than a
    /// decision. From 1 ms to 60 s; one that is shorter than the [deadline](Self::deadline) of
    /// decisions counts as that. Defaults to 1 s.
    ///
    /// A settlement waits for room at the server for as long as it takes. All settlements together
    /// take at most half of the room; the rest is for decisions. A settlement's deadline begins
    /// when it is sent. At most 65,536 are under way at one time; further ones fail as
    /// [saturated](throttle_core::BackendErrorKind::Saturated).
    pub fn correction_deadline(mut self, deadline: Duration) -> Self {
        self.correction_deadline = deadline;
        self
    }

    /// Sets how many failures in a row open the breaker: the store is then not called until it
    /// gives a sign of life. At least 1. On a cluster, each server has its own breaker, and the
    /// failures of one suspend no call to another. Defaults to 5.
    ///
    /// A failure is an error of the connection or the server, or a call that the store does not
    /// answer within the deadline, counted from when the call was sent. A decision that times out
    /// while it waits in this process is not a failure of the store; nor is an answer that a busy
    /// process reads late. A server that refuses what every decision needs (it is a replica, full,
    /// without enough replicas or disk, or denies a command) opens the breaker at the second
    /// failure in a row, whatever the threshold.
    ///
    /// A sign of life is a script that uses all commands of a decision on a key that does not
    /// exist, and changes nothing. While the breaker is open, the server is asked for one two to
    /// ten times a second.
    pub fn breaker_threshold(mut self, failures: u32) -> Self {
        self.threshold = failures;
        self
    }

    /// Sets how many decisions of a set one script call may carry, 1 to 64; 1 disables batches. A
    /// call carries fewer if they would keep the server busy for more than about a millisecond, as
    /// with large sliding logs. A call carries decisions in the same tiers; a decision by a key's
    /// own parameters has a call of its own. On a cluster, a call carries decisions about one hash
    /// slot; while that slot moves to another server, each has a call of its own. Defaults to 64.
    pub fn max_batch(mut self, decisions: usize) -> Self {
        self.max_batch = decisions;
        self
    }

    /// Sets how many decisions of a set may wait for a call, counted separately for each of its
    /// tiers; further ones fail at once as [saturated](throttle_core::BackendErrorKind::Saturated).
    /// At least 1. Defaults to 1,024.
    pub fn queue(mut self, decisions: usize) -> Self {
        self.queue = decisions;
        self
    }

    /// Sets how long a key is kept after its reset, when it equals an unused key; up to 60 s. If
    /// the server's clock steps back by less than this, no extra request is admitted. Defaults to
    /// 10 s.
    ///
    /// A key is kept for up to 5 s longer, because its expiry is renewed only when the reset moves
    /// to another five seconds. Another slack therefore applies to a key from its next renewal on,
    /// which for a window is the next window. Next to processes of a version that renewed the
    /// expiry with each charge, set at least 5 s: a shorter expiry of theirs would not be renewed.
    pub fn kept_beyond_reset(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    /// Passes this clock's time to the scripts, instead of the server's. Use it only in tests,
    /// because the clocks of several processes differ. Keys are then kept ten minutes beyond their
    /// reset, because the server expires them by its own clock. While the clock stands still, their
    /// expiry is not renewed.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Box::new(move || clock.now()));
        self
    }

    /// Caches up to `most` refusals in this process. While a cached refusal is valid, requests of
    /// the same or a greater cost are refused without a call to the store, for a second at most. A
    /// refund, a reset, an exception or a charge by other parameters clears the cached refusals of
    /// its keys at once, if this backend makes it. A cached refusal reports the limits that do not
    /// refuse as they were when it was made. What other processes do is not seen until the wait or
    /// the second is over: a key that another process refunds, resets or exempts stays refused here
    /// for that time, and `remaining` may be too high when other processes charge. Refusals in
    /// tiers and by keys' own parameters are not cached. Defaults to 0: no cache.
    pub fn deny_cache(mut self, most: usize) -> Self {
        self.refusals = most;
        self
    }

    /// Reports [these metrics](crate::metrics) through the facade of the `metrics` crate, with
    /// `backend` as the value of their label `backend`. Choose another name for each backend of the
    /// program: the series of two backends with one name add up. The recorder may be installed
    /// before or after. By default, nothing is reported.
    ///
    /// ```
    /// use metrics_util::debugging::DebuggingRecorder;
    /// use throttle_redis::{RedisBackend, Single};
    ///
    /// let recorder = DebuggingRecorder::new();
    /// let redis = RedisBackend::builder(Single::new("redis://127.0.0.1:1")?).metrics("api");
    /// let _backend = metrics::with_local_recorder(&recorder, || redis.build())?;
    /// let series = recorder.snapshotter().snapshot().into_vec();
    /// assert!(
    ///     series
    ///         .iter()
    ///         .any(|(key, ..)| key.key().name() == "throttle_redis_decisions_total")
    /// );
    /// # Ok::<_, throttle_core::ConfigError>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, backend: impl Into<String>) -> Self {
        self.reporter = Some(Box::new(Series::new(backend.into())));
        self
    }

    /// Builds the backend, without waiting for a connection: see [`RedisBackend::new`].
    ///
    /// # Errors
    ///
    /// If an option is out of bounds, or the store is a cluster and none of
    /// [`single_slot`](Self::single_slot), [`per_key_slot`](Self::per_key_slot) and
    /// [`slot_by_first_part`](Self::slot_by_first_part) was chosen.
    pub fn build(self) -> Result<RedisBackend, ConfigError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let connect_timeout = self.connect_timeout.unwrap_or(CONNECT.max(self.deadline));
        let correction = millis(self.correction_deadline);
        let queue = self.queue as u64;
        let threshold = u64::from(self.threshold);
        for (field, value, bounds) in [
            (
                "deadline in milliseconds",
                millis(self.deadline),
                1..=10_000,
            ),
            (
                "connect timeout in milliseconds",
                millis(connect_timeout),
                1..=60_000,
            ),
            (
                "correction deadline in milliseconds",
                correction,
                1..=60_000,
            ),
            ("decisions in one call", self.max_batch as u64, 1..=64),
            (
                "decisions that wait",
                queue,
                1..=Semaphore::MAX_PERMITS as u64,
            ),
            ("failures to open", threshold, 1..=u64::from(u32::MAX)),
            (
                "milliseconds kept beyond reset",
                millis(self.slack),
                0..=60_000,
            ),
        ] {
            if !bounds.contains(&value) {
                let (least, most) = bounds.into_inner();
                let rule = format!("it must lie between {least} and {most}");
                return Err(ConfigError::new(field, value, rule));
            }
        }
        let is_cluster = !self.connector.cluster().is_empty();
        let placement = match self.placement {
            Some(placement) => placement,
            None if !is_cluster => Placement::SingleSlot("all".to_owned()),
            None => {
                let rule = "on a cluster, choose .single_slot(tag) to decide every set in one \
                    atomic step on one server, .slot_by_first_part() to use all servers and \
                    decide limits of one customer in one step, or .per_key_slot() to use all \
                    servers and reserve each policy where its key is";
                return Err(ConfigError::new("placement of keys", "none", rule));
            }
        };
        let secret = self
            .secret
            .unwrap_or_else(|| self.prefix.clone().into_bytes());
        let keyspace = Keyspace::new(&self.prefix, placement, &secret, self.readable)?;
        let slack = if self.clock.is_some() {
            600_000
        } else {
            millis(self.slack)
        };
        let deadlines = Deadlines {
            decision: self.deadline,
            correction: self.correction_deadline.max(self.deadline),
            connect: connect_timeout,
        };
        let links = Links::new(
            self.connector,
            deadlines,
            self.threshold,
            Counters::new(self.reporter),
        );
        let shared = SharedBackend {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            settlements: Semaphore::new(MOST_SETTLEMENTS),
            links,
            one_slot: if is_cluster {
                keyspace.one_slot()
            } else {
                Some(0)
            },
            keyspace,
            options: Options {
                max_batch: self.max_batch,
                queue: self.queue,
                slack: slack.to_string(),
                clock: self.clock,
            },
            shortcut: Shortcut::new(self.refusals),
        };
        Ok(RedisBackend {
            shared: Arc::new(shared),
        })
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisBuilder");
        shown
            .field("prefix", &self.prefix)
            .field("placement", &self.placement)
            .field("deadline", &self.deadline);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Key, ManualClock};

    use super::*;
    use crate::link::tests::by_hand::ByHand;

    fn builder() -> RedisBuilder {
        RedisBackend::builder(Single::new("redis://127.0.0.1:1").expect("a URL"))
    }

    #[test]
    fn defaults_are_as_documented() {
        let shared = builder().build().expect("valid options").shared;
        let Options {
            max_batch,
            queue,
            slack,
            clock,
        } = &shared.options;
        assert_eq!(
            (*max_batch, *queue, slack.as_str(), clock.is_none()),
            (64, 1_024, "10000", true)
        );
        assert_eq!(shared.links.deadlines.decision, Duration::from_millis(25));
        assert_eq!(shared.links.deadlines.connect, Duration::from_secs(1));
        assert_eq!(shared.links.deadlines.correction, Duration::from_secs(1));
        let slow = builder().deadline(Duration::from_secs(9));
        let slow = slow.build().expect("valid options").shared;
        assert_eq!(slow.links.deadlines.correction, Duration::from_secs(9));
        let tag = Placement::SingleSlot("all".to_owned());
        let documented = Keyspace::new("throttle", tag, b"throttle", false).expect("a prefix");
        let name = |space: &Keyspace| space.name(&space.policy("p"), &Key::from("ada"));
        assert_eq!(
            name(&shared.keyspace),
            name(&documented),
            "the secret is the prefix"
        );
    }

    #[test]
    fn an_attempt_to_connect_may_take_as_long_as_a_decision_unless_it_is_set() {
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(3));
        for (builder, expected) in [
            (builder().deadline(long), long),
            (builder().connect_timeout(short), short),
            (builder().connect_timeout(short).deadline(long), short),
        ] {
            let link = builder.build().expect("valid options").shared;
            assert_eq!(link.links.deadlines.connect, expected);
        }
    }

    #[test]
    fn keys_outlive_a_clock_of_ones_own_by_ten_minutes() {
        let shared = builder()
            .clock(ManualClock::default())
            .build()
            .expect("valid options")
            .shared;
        assert_eq!(shared.options.slack, "600000");
        let shared = builder()
            .kept_beyond_reset(Duration::from_millis(7))
            .build()
            .expect("valid options")
            .shared;
        assert_eq!(shared.options.slack, "7");
    }

    #[test]
    fn the_secret_changes_the_names_of_keys() {
        let shared = builder()
            .secret("a secret")
            .build()
            .expect("valid options")
            .shared;
        let tag = Placement::SingleSlot("all".to_owned());
        let documented = Keyspace::new("throttle", tag, b"a secret", false).expect("a prefix");
        let name = |space: &Keyspace| space.name(&space.policy("p"), &Key::from("ada"));
        assert_eq!(name(&shared.keyspace), name(&documented));
    }

    #[test]
    fn options_at_their_bounds_are_valid() {
        for (deadline, batch, queue, threshold, slack) in [
            (1, 1, 1, 1, 0),
            (10_000, 64, Semaphore::MAX_PERMITS, u32::MAX, 60_000),
        ] {
            let (deadline, slack) = (
                Duration::from_millis(deadline),
                Duration::from_millis(slack),
            );
            let builder = builder()
                .deadline(deadline)
                .max_batch(batch)
                .queue(queue)
                .breaker_threshold(threshold);
            let shared = builder
                .kept_beyond_reset(slack)
                .build()
                .expect("valid options")
                .shared;
            assert_eq!(
                (shared.options.max_batch, shared.options.queue),
                (batch, queue)
            );
        }
        let over = builder()
            .queue(Semaphore::MAX_PERMITS + 1)
            .build()
            .expect_err("too many");
        assert_eq!(over.field(), "decisions that wait");
    }

    #[test]
    fn options_out_of_bounds_are_shown_with_their_bounds() {
        let refused =
            |builder: RedisBuilder| builder.build().expect_err("out of bounds").to_string();
        let millis = Duration::from_millis;
        for (builder, text) in [
            (
                builder().deadline(Duration::from_micros(999)),
                "deadline in milliseconds is 0: it must lie between 1 and 10000",
            ),
            (
                builder().deadline(millis(10_001)),
                "deadline in milliseconds is 10001: it must lie between 1 and 10000",
            ),
            (
                builder().deadline(Duration::MAX),
                "deadline in milliseconds is 18446744073709551615: it must lie between 1 and 10000",
            ),
            (
                builder().connect_timeout(Duration::ZERO),
                "connect timeout in milliseconds is 0: it must lie between 1 and 60000",
            ),
            (
                builder().connect_timeout(millis(60_001)),
                "connect timeout in milliseconds is 60001: it must lie between 1 and 60000",
            ),
            (
                builder().correction_deadline(millis(60_001)),
                "correction deadline in milliseconds is 60001: it must lie between 1 and 60000",
            ),
            (
                builder().correction_deadline(Duration::ZERO),
                "correction deadline in milliseconds is 0: it must lie between 1 and 60000",
            ),
            (
                builder().max_batch(0),
                "decisions in one call is 0: it must lie between 1 and 64",
            ),
            (
                builder().max_batch(65),
                "decisions in one call is 65: it must lie between 1 and 64",
            ),
            (
                builder().breaker_threshold(0),
                "failures to open is 0: it must lie between 1 and 4294967295",
            ),
            (
                builder().kept_beyond_reset(millis(60_001)),
                "milliseconds kept beyond reset is 60001: it must lie between 0 and 60000",
            ),
        ] {
            assert_eq!(refused(builder), text);
        }
        let most = Semaphore::MAX_PERMITS;
        assert_eq!(
            refused(builder().queue(0)),
            format!("decisions that wait is 0: it must lie between 1 and {most}")
        );
    }

    #[test]
    fn a_builder_shows_where_keys_are_and_no_secret() {
        let builder = builder()
            .prefix("shop")
            .secret("hunter2")
            .deadline(Duration::from_millis(10));
        let shown = r#"RedisBuilder { prefix: "shop", placement: None, deadline: 10ms, .. }"#;
        assert_eq!(format!("{builder:?}"), shown);
        let shown =
            r#"RedisBuilder { prefix: "shop", placement: Some(PerKeySlot), deadline: 10ms, .. }"#;
        assert_eq!(format!("{:?}", builder.per_key_slot()), shown);
    }

    #[test]
    fn without_a_secret_the_prefix_is_the_secret() {
        let shared = builder()
            .prefix("shop")
            .single_slot("x")
            .build()
            .expect("valid options")
            .shared;
        let tag = Placement::SingleSlot("x".to_owned());
        let documented = Keyspace::new("shop", tag, b"shop", false).expect("a prefix");
        let name = |space: &Keyspace| space.name(&space.policy("p"), &Key::from("ada"));
        assert_eq!(name(&shared.keyspace), name(&documented));
    }

    #[test]
    fn only_a_cluster_needs_a_choice_of_slots_and_the_last_one_counts() {
        let on_cluster = || RedisBuilder::new(Box::new(ByHand::cluster()));
        let error = on_cluster().build().expect_err("no placement");
        assert_eq!(
            (error.field(), error.value()),
            ("placement of keys", "none")
        );
        let is_single = |builder: RedisBuilder| {
            builder
                .build()
                .expect("a placement")
                .shared
                .keyspace
                .one_slot()
                .is_some()
        };
        assert!(is_single(builder()) && !is_single(builder().per_key_slot()));
        assert!(
            is_single(on_cluster().single_slot("x")) && !is_single(on_cluster().per_key_slot())
        );
        assert!(!is_single(on_cluster().slot_by_first_part()));
        assert!(!is_single(builder().single_slot("x").slot_by_first_part()));
        assert!(is_single(builder().per_key_slot().single_slot("x")));
        assert!(!is_single(builder().single_slot("x").per_key_slot()));
    }
}
