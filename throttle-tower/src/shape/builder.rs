use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Backend, ConfigError, LeakyBucket, LocalShare, MemoryBackend, Policy, PolicySet, Rate};

use super::clock::TokioClock;
use super::counters::Counters;
use super::pace::Pace;
use super::pauses::Pauses;
use super::shaper::Shaper;
use crate::OnError;
use crate::usage::Background;

/// Options of a [`Shaper`].
#[derive(Clone)]
#[must_use]
pub struct ShaperBuilder<B: Backend = MemoryBackend<TokioClock>> {
    bucket: LeakyBucket,
    backend: B,
    /// Whether others may use the backend too.
    is_shared: bool,
    name: Option<String>,
    replaces_existing: bool,
    headroom: Option<Duration>,
    on_error: Option<OnError>,
    max_waiting: usize,
}

impl ShaperBuilder {
    /// 100,000 calls.
    pub const DEFAULT_MAX_WAITING: usize = 100_000;

    pub(super) fn new(bucket: LeakyBucket) -> Self {
        Self {
            bucket,
            backend: MemoryBackend::builder().clock(TokioClock::new()).build(),
            is_shared: false,
            name: None,
            replaces_existing: false,
            headroom: None,
            on_error: None,
            max_waiting: Self::DEFAULT_MAX_WAITING,
        }
    }
}

impl<B: Backend> ShaperBuilder<B> {
    /// What the pace is called: 1 to 64 printable ASCII characters. On a shared backend it says whose schedule it is: those
    /// who share one must agree on it, and there is no default. In memory it defaults to `shape`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Replaces a pace of the same name that is in use on the same backend and has other parameters, as
    /// [`Limit::replace_existing`](crate::Limit::replace_existing) does. Without it that is an error. Defaults to not
    /// replacing.
    pub fn replace_existing(mut self) -> Self {
        self.replaces_existing = true;
        self
    }

    /// How much longer than its period the rate's count takes, so that calls which leave or travel a little late do not make
    /// one too many in some period of the upstream's: 5 in 1.005 s rather than 5 in 1 s. It is how far the delays of two
    /// calls may lie apart. Calls that this process itself lets out later than that, because it stood still, put off those
    /// behind them, so that they do not leave all at once. On the way to the upstream more may come: give more where the way to the upstream is uneven, to new connections say. Zero keeps the rate to
    /// the letter, and lets those leave together who are due. Defaults to a hundredth of the period, and 5 ms at most; with a [`backend`](Self::backend) that has to be
    /// waited for, whose answers may take longer for one call than for another, to a fortieth, and 25 ms at most.
    pub fn headroom(mut self, headroom: Duration) -> Self {
        self.headroom = Some(headroom);
        self
    }

    /// Keeps the schedule in another store, such as one that a fleet of processes shares.
    ///
    /// A backend in memory must go by a [`TokioClock`], as the timers do.
    pub fn backend<C: Backend>(self, backend: C) -> ShaperBuilder<C> {
        let Self { bucket, name, replaces_existing, headroom, on_error, max_waiting, .. } = self;
        ShaperBuilder { bucket, backend, is_shared: true, name, replaces_existing, headroom, on_error, max_waiting }
    }

    /// What happens when the store fails: [`OnError::local`] goes on by a share of the pace, [`OnError::Closed`] fails the
    /// call, and [`OnError::Open`] lets it go at once, at no pace, if the store is broken; while the store is
    /// [busy](throttle_core::BackendErrorKind::is_busy), this process keeps the whole pace by itself. There is no default:
    /// a backend that can fail asks for it.
    ///
    /// While a store goes away, or comes back, some processes may go by it and others by their shares: for a moment, and for
    /// those who were told a time before, a little more than the pace may leave.
    pub fn on_error(mut self, rule: OnError) -> Self {
        self.on_error = Some(rule);
        self
    }

    /// Most calls that may wait at once, of all keys together; more are refused. Those who wait take about 500 bytes each
    /// in a layer and 700 in [`Shaper::schedule`], beside the request. Defaults to 100,000.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.max_waiting = calls;
        self
    }

    /// The shaper.
    ///
    /// # Errors
    ///
    /// If the bucket cannot be counted exactly, the name is none or not given where it must be, nothing is said about a
    /// store that can fail, or the name is in use on the backend with other parameters.
    pub fn build(self) -> Result<Shaper<B>, ConfigError> {
        let name = self.checked_name()?;
        let on_error = self.checked_on_error().map_err(|error| error.in_policy(&name))?;
        let policy = Policy::new(&name, self.bucket_with_headroom())?;
        let policy = if self.replaces_existing { policy.replace_existing() } else { policy };
        let rate = policy.algorithm().rate();
        let set = PolicySet::new(policy)?;
        // An open pace is kept by this process alone while the store is busy: a burst does not make it broken.
        let processes = on_error.processes().or((on_error == OnError::Open).then_some(NonZeroU32::MIN));
        let share = processes.filter(|_| self.backend.can_fail()).map(|processes| {
            let store = MemoryBackend::builder().clock(TokioClock::new()).build();
            LocalShare::new(&store, &set, processes)
        });
        let share = share.transpose()?;
        Ok(Shaper::from_pace(Pace {
            prepared: Arc::new(self.backend.prepare(set)?),
            backend: self.backend,
            share,
            on_error,
            rate,
            max_wait: self.bucket.longest_wait(),
            max_waiting: self.max_waiting,
            counters: Arc::new(Counters::default()),
            post: Background::default(),
            // The period is longer by the headroom, and so much later than another may each call be.
            pauses: Pauses::new(rate, rate.period().checked_sub(self.bucket.rate().period()).filter(|h| !h.is_zero())),
        }))
    }

    fn checked_name(&self) -> Result<String, ConfigError> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None if self.is_shared => {
                let rule = "who shares a pace is told by its name; add .name(\"…\"), the same in all processes and none \
                            that anything else on this backend has";
                Err(ConfigError::new("name", "not set", rule))
            }
            None => Ok("shape".to_owned()),
        }
    }

    fn checked_on_error(&self) -> Result<OnError, ConfigError> {
        match self.on_error {
            None if self.backend.can_fail() => {
                let rule = "the backend can fail, and there is no silent default; add .on_error(OnError::local(n)) to go on \
                            then by a part of the pace, where n processes share it, .on_error(OnError::Closed) to fail \
                            calls, or .on_error(OnError::Open) to let them go at no pace";
                Err(ConfigError::new("on_error", "not set", rule))
            }
            Some(OnError::Local { processes: 0 }) => {
                let rule = "at least one process shares the pace: this one; give the number that you run";
                Err(ConfigError::new("processes of on_error", 0, rule))
            }
            rule => Ok(rule.unwrap_or(OnError::Closed)),
        }
    }

    fn bucket_with_headroom(&self) -> LeakyBucket {
        let rate = self.bucket.rate();
        let slower = |headroom: Duration| {
            let period = rate.period().saturating_add(headroom);
            LeakyBucket::new(Rate::new(rate.count(), period)).max_wait(self.bucket.longest_wait())
        };
        match self.headroom {
            Some(headroom) => slower(headroom),
            None => {
                let (part, most) = if self.backend.can_fail() { (40, 25) } else { (100, 5) };
                let usual = slower((rate.period() / part).min(Duration::from_millis(most)));
                // Where that cannot be counted exactly, and the rate itself can, the period is so long that it does not matter.
                if usual.build().is_ok() { usual } else { self.bucket }
            }
        }
    }
}

/// What a [`ShapeLayer`](crate::ShapeLayer) paces calls by: a bucket, for a pace of this process alone; a [`ShaperBuilder`] with
/// its options; or a [`Shaper`] that others use too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no pace",
    label = "expected a `LeakyBucket`, a `ShaperBuilder` or a `Shaper`",
    note = "write `LeakyBucket::new(Rate::per_second(5)).max_wait(…)`, or `Shaper::builder(…)` with options around it"
)]
pub trait IntoShaper {
    /// Where the schedule is kept.
    type Backend: Backend;

    /// The shaper.
    ///
    /// # Errors
    ///
    /// As [`ShaperBuilder::build`].
    fn into_shaper(self) -> Result<Shaper<Self::Backend>, ConfigError>;
}

impl IntoShaper for LeakyBucket {
    type Backend = MemoryBackend<TokioClock>;

    fn into_shaper(self) -> Result<Shaper, ConfigError> {
        Shaper::new(self)
    }
}

impl<B: Backend> IntoShaper for ShaperBuilder<B> {
    type Backend = B;

    fn into_shaper(self) -> Result<Shaper<B>, ConfigError> {
        self.build()
    }
}

impl<B: Backend> IntoShaper for Shaper<B> {
    type Backend = B;

    fn into_shaper(self) -> Result<Self, ConfigError> {
        Ok(self)
    }
}

impl<B: Backend> fmt::Debug for ShaperBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShaperBuilder").field("bucket", &self.bucket).field("name", &self.name).finish_non_exhaustive()
    }
}
