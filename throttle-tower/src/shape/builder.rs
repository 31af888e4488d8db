use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use throttle_core::{
    Backend, BoxBackend, ConfigError, LeakyBucket, LocalShare, MemoryBackend, PolicySet, Rate,
};

use super::clock::TokioClock;
use super::obey_upstream::ObeyUpstream;
use super::pace::Pace;
use super::queues::CallQueues;
use super::schedule::Schedule;
use super::shaper::Shaper;
use super::shared_pauses::SharedPauses;
use super::stats::ShapeCounters;
use super::unit_paces::{UnitPaces, check_length};
use crate::limit::OnError;
use crate::usage::Background;

impl Shaper {
    /// A pace of this process alone.
    ///
    /// # Errors
    ///
    /// If the pace is wrong. The error names the field, the value and the bound.
    pub fn new(pace: Pace) -> Result<Self, ConfigError> {
        Self::builder(pace).build()
    }

    /// A pace with options, among them a store that a fleet of processes shares.
    pub fn builder(pace: Pace) -> ShaperBuilder {
        ShaperBuilder {
            pace,
            backend: None,
            name: None,
            headroom: None,
            on_error: None,
            max_waiting: ShaperBuilder::DEFAULT_MAX_WAITING,
            share_pauses: None,
            rates: Vec::new(),
        }
    }
}

/// Options of a [`Shaper`].
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::Shaper;
/// use throttle_tower::{Pace, Rate};
///
/// let shaper = Shaper::builder(Pace::new(Rate::per_second(5)))
///     .headroom(Duration::from_millis(20))
///     .build()?;
/// assert_eq!(shaper.rate(), Rate::new(5, Duration::from_millis(1_020)));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[must_use]
pub struct ShaperBuilder {
    pace: Pace,
    /// The backend that was passed in, which other limits may use too.
    backend: Option<BoxBackend>,
    name: Option<String>,
    headroom: Option<Duration>,
    on_error: Option<OnError>,
    max_waiting: usize,
    /// The longest pause that is shared.
    share_pauses: Option<Duration>,
    /// Of the other units that are paced.
    rates: Vec<(&'static str, Rate)>,
}

impl ShaperBuilder {
    /// 100,000 calls.
    pub const DEFAULT_MAX_WAITING: usize = 100_000;

    /// Adds a pace of another unit, such as tokens, to that of requests:
    /// `.by_unit("tokens", Rate::per_minute(30_000))`. A call waits for its turn by all paces that
    /// it uses: it leaves when the calls before it have had the time that each of them allows. It
    /// takes its turn in all of them or in none. Over a store this is one decision, as for one
    /// pace.
    ///
    /// What a call costs is an estimate: [`ShapeLayer::by_unit`](crate::ShapeLayer::by_unit),
    /// [`Shaper::schedule_units`]. What it has really used is [settled](super::ShapeUsage)
    /// afterwards.
    ///
    /// The pace's longest wait holds for the call as a whole. A call is refused if the time of
    /// its slowest unit would end so late that a single request would have to leave after that
    /// wait. So a wait of a minute admits calls of no more tokens than a minute allows.
    ///
    /// All processes that share a schedule name the same units at the same rates. The pace of each
    /// unit has a name of its own, the schedule's name with `+` and the unit.
    ///
    /// A unit's period is lengthened by the [headroom](Self::headroom) as that of requests is. An
    /// explicit headroom is added to each of them: one of 1 s slows a pace per minute by a
    /// sixtieth, and a pace per second to the half.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::Shaper;
    /// use throttle_tower::{Pace, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let requests = Pace::new(Rate::per_minute(600)).max_wait(Duration::from_secs(60));
    /// let paces = Shaper::builder(requests).by_unit("tokens", Rate::per_minute(6_000));
    /// let model = paces.headroom(Duration::ZERO).build()?;
    /// let began = tokio::time::Instant::now();
    /// model.schedule_units("key", 1, &[("tokens", 500)]).await?; // takes 5 s of the pace of tokens
    /// model.schedule_units("key", 1, &[("tokens", 1)]).await?; // takes 0.1 s of the pace of requests
    /// model.schedule_units("key", 1, &[("tokens", 1)]).await?;
    /// assert_eq!(began.elapsed(), Duration::from_millis(5_100));
    /// let error = model
    ///     .schedule_units("key", 1, &[("tokens", 6_011)])
    ///     .await
    ///     .unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "the tokens of the call would wait longer than max_wait, 60s; so many never fit"
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_unit(mut self, unit: &'static str, rate: Rate) -> Self {
        self.rates.push((unit, rate));
        self
    }

    /// The name of the schedule: 1 to 64 printable ASCII characters. Shapers of one name on one
    /// backend share a schedule. The name is required if [`backend`](Self::backend) is set.
    /// Without a backend it defaults to `shape`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Slows the pace a little: the rate's period becomes longer by the headroom, for example 5
    /// calls in 1.005 s instead of 1 s. Calls take different times to reach the upstream and may
    /// arrive closer together than they left. The headroom keeps them within the limit in every
    /// period of the upstream, if those times differ by no more than the headroom.
    ///
    /// If this process was stalled and a turn is late by more than the headroom, the turns after
    /// it are later too, so that the calls do not leave all together. Delays on the way to the
    /// upstream may differ by more, for example with new connections: increase the headroom then.
    /// Zero uses the exact rate, and after a stall sends all due calls together.
    ///
    /// Defaults to a hundredth of the period, at most 5 ms. With an asynchronous
    /// [`backend`](Self::backend), whose decisions take varying time, it defaults to a fortieth, at
    /// most 25 ms.
    pub fn headroom(mut self, headroom: Duration) -> Self {
        self.headroom = Some(headroom);
        self
    }

    /// Keeps the schedule in another store, such as one that a fleet of processes shares.
    ///
    /// A backend in memory must use a [`TokioClock`], as the timers do.
    pub fn backend(mut self, backend: impl Backend) -> Self {
        self.backend = Some(BoxBackend::new(backend));
        self
    }

    /// What happens when the store fails. [`OnError::local`] continues at a share of the pace.
    /// [`OnError::Closed`] fails the call. [`OnError::Open`] sends it immediately, at no pace, if
    /// the store is broken; while the store is [busy](throttle_core::BackendErrorKind::is_busy),
    /// this process keeps the whole pace by itself. There is no default: a backend that can fail
    /// requires a choice.
    ///
    /// When a store fails or returns, some processes may use it while others use their shares. For
    /// that moment all processes together may slightly exceed the pace.
    pub fn on_error(mut self, rule: OnError) -> Self {
        self.on_error = Some(rule);
        self
    }

    /// Sets how many calls may wait at one time, of all keys together. Further calls are refused. A
    /// waiting call takes less than 600 bytes, the request and the inner service not counted (700
    /// in a layer that obeys the upstream). Defaults to 100,000.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.max_waiting = calls;
        self
    }

    /// Shares pauses through the [`backend`](Self::backend): when the
    /// [upstream](crate::ShapeLayer::obey_upstream) or the [program](Shaper::pause) pauses a key in
    /// one process, the others pause it as well. Off by default. The store keeps these pauses under
    /// the shaper's name with `/pauses` and `/telling`.
    ///
    /// No call waits for this. A process looks for pauses when calls leave, at most four times a
    /// second for each key: one more decision of the store each time. So a process whose calls
    /// leave pauses within a quarter of a second and a round trip to the store, calls that wait
    /// included. One that has not looked for a while sends one call more.
    ///
    /// No process is stopped for more than `longest` by one pause that another one has heard of,
    /// however many of them hear of it: 1 ms to 24 h, the same in all processes. What a process
    /// itself hears is bounded by [`longest_pause`](crate::ShapeLayer::longest_pause). All resume
    /// at the announced end, [jitter](crate::ShapeLayer::pause_jitter) included, and each lets
    /// its waiting calls leave at the pace. So for as long as these take, the fleet may exceed the
    /// pace. Calls that are held for an answer, and what a key has learned of its resets, are not
    /// shared. While the store fails, each process keeps its own pauses only.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::{Shaper, TokioClock};
    /// use throttle_tower::{Pace, MemoryBackend, Rate, ShapeLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // In a fleet, a `throttle_redis::RedisBackend`.
    /// let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    /// let process = || {
    ///     let pace = Pace::new(Rate::per_second(100)).max_wait(Duration::from_secs(10));
    ///     Shaper::builder(pace)
    ///         .name("api")
    ///         .backend(store.clone())
    ///         .share_pauses(Duration::from_secs(60))
    ///         .build()
    /// };
    /// let (one, other) = (process()?, process()?);
    /// one.pause("api.example", Duration::from_secs(5));
    /// let before = tokio::time::Instant::now();
    /// other.schedule("api.example", 1).await?; // leaves, and looks
    /// other.schedule("api.example", 1).await?;
    /// assert!(before.elapsed() > Duration::from_secs(4));
    /// let layer: ShapeLayer<http::Request<()>, http::Response<()>> = ShapeLayer::of(one);
    /// let layer = layer.obey_upstream();
    /// # Ok(())
    /// # }
    /// ```
    pub fn share_pauses(mut self, longest: Duration) -> Self {
        self.share_pauses = Some(longest);
        self
    }

    /// Builds the shaper.
    ///
    /// # Errors
    ///
    /// If a rate or the longest wait cannot be counted in exact integers, a name is invalid or
    /// missing where it is required, a unit has two paces, or `on_error` is missing for a store
    /// that can fail.
    pub fn build(self) -> Result<Shaper, ConfigError> {
        let name = self.checked_name()?;
        let Pace { rate, max_wait } = self.pace;
        let backend = self.backend.clone().unwrap_or_else(|| {
            let memory = MemoryBackend::builder().clock(TokioClock::new());
            BoxBackend::new(memory.build())
        });
        let can_fail = backend.can_fail();
        let on_error = self
            .checked_on_error(can_fail)
            .map_err(|error| error.in_policy(&name))?;
        let units = self
            .rates
            .iter()
            .map(|(unit, rate)| (*unit, self.with_headroom(*rate, can_fail)))
            .collect();
        let paces = UnitPaces::new(self.with_headroom(rate, can_fail), units)
            .map_err(|error| error.in_policy(&name))?;
        let set = paces.policies(&name, max_wait)?;
        let shared_pauses = self
            .shared_pauses(&name)
            .map_err(|error| error.in_policy(&name))?;
        // The headroom that is in force is what the period has grown by.
        let headroom = paces.requests.period().checked_sub(rate.period());
        let schedule = Schedule {
            share: local_share(on_error, &set)?.filter(|_| can_fail),
            prepared: Arc::new(backend.prepare(set)?),
            backend,
            on_error,
            tolerance: headroom.filter(|headroom| !headroom.is_zero()),
            paces,
            max_wait,
            max_waiting: self.max_waiting,
            counters: ShapeCounters::default(),
            #[cfg(feature = "tracing")]
            events: Default::default(),
            background: Background::default(),
            queues: CallQueues::default(),
            shared_pauses,
            trip: AtomicU64::new(0),
        };
        Ok(Shaper {
            schedule: Arc::new(schedule),
            obey: ObeyUpstream::default(),
        })
    }

    fn checked_name(&self) -> Result<String, ConfigError> {
        let name = self.name.clone();
        if name.is_none() && self.backend.is_some() {
            let rule = "processes share a pace by its name; add .name(\"…\"), the same in all of \
                them, and one that nothing else on this backend has";
            return Err(ConfigError::new("name", "not set", rule));
        }
        Ok(name.unwrap_or_else(|| "shape".to_owned()))
    }

    fn shared_pauses(&self, name: &str) -> Result<Option<Arc<SharedPauses>>, ConfigError> {
        let Some(longest) = self.share_pauses else {
            return Ok(None);
        };
        let Some(backend) = &self.backend else {
            let rule = "pauses are shared through a store; add .backend(…), or remove it: the \
                clones of a shaper have the same pauses anyway";
            let value = "set without a backend";
            return Err(ConfigError::new("share_pauses", value, rule));
        };
        check_length(name, SharedPauses::TURNS, "share_pauses")?;
        SharedPauses::new(backend.clone(), name, longest).map(|pauses| Some(Arc::new(pauses)))
    }

    fn checked_on_error(&self, can_fail: bool) -> Result<OnError, ConfigError> {
        match self.on_error {
            None if can_fail => {
                let rule = "the backend can fail, and there is no silent default; add \
                    .on_error(OnError::local(n)) to continue at a part of the pace, where n \
                    processes share it, .on_error(OnError::Closed) to fail calls, or \
                    .on_error(OnError::Open) to send them at no pace";
                Err(ConfigError::new("on_error", "not set", rule))
            }
            Some(OnError::Local { processes: 0 }) => {
                let rule =
                    "at least one process shares the pace: this one; write the number that you run";
                Err(ConfigError::new("processes of on_error", 0, rule))
            }
            rule => Ok(rule.unwrap_or(OnError::Closed)),
        }
    }

    /// A rate that is slower by the headroom.
    fn with_headroom(&self, rate: Rate, can_fail: bool) -> Rate {
        let slower =
            |headroom: Duration| Rate::new(rate.count(), rate.period().saturating_add(headroom));
        if let Some(headroom) = self.headroom {
            return slower(headroom);
        }
        let (part, most_millis) = if can_fail { (40, 25) } else { (100, 5) };
        let usual = slower((rate.period() / part).min(Duration::from_millis(most_millis)));
        // If that cannot be counted exactly but the rate can, the period is so long that headroom
        // does not matter.
        let bucket = LeakyBucket::new(usual).max_wait(self.pace.max_wait);
        if bucket.build().is_ok() { usual } else { rate }
    }
}

/// Decides in this process while the store fails.
///
/// With [`OnError::Open`], this process keeps the pace alone while the store is busy: a burst does
/// not mean that it is broken.
fn local_share(on_error: OnError, set: &PolicySet) -> Result<Option<LocalShare>, ConfigError> {
    let alone = (on_error == OnError::Open).then_some(NonZeroU32::MIN);
    let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    let processes = on_error.processes().or(alone);
    processes
        .map(|processes| LocalShare::new(&store, set, processes))
        .transpose()
}

impl fmt::Debug for ShaperBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShaperBuilder")
            .field("pace", &self.pace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::Rate;

    use super::*;
    use crate::shape::Shaper;

    #[test]
    fn shape_builder_shows_what_was_configured_and_not_what_comes_of_it() {
        let pace = Pace::new(Rate::per_second(5));
        let builder = Shaper::builder(pace)
            .headroom(Duration::from_millis(20))
            .name("api");
        let expected = format!("ShaperBuilder {{ pace: {pace:?}, name: Some(\"api\"), .. }}");
        assert_eq!(format!("{builder:?}"), expected);
        assert_ne!(builder.build().unwrap().rate(), Rate::per_second(5));
    }
}
