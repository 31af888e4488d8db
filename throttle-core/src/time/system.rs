use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Clock, Timestamp};

/// Wall time that never runs backwards inside a process.
///
/// The clock reads the processor's monotonic counter (about 10 ns a read) and is anchored on the
/// operating system's wall clock. Every ten seconds the anchor follows the wall clock: forward at
/// once, backward by at most half a second, during which the clock stands still instead of stepping
/// back. If the wall clock is set forward by an hour by mistake and then back, this clock is
/// correct again after twenty hours; until then limits refill at 95 % of their rate or more. All
/// instances in a process agree.
///
/// ```
/// use throttle_core::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
///
/// The first instance in a process calibrates the counter, which can block the caller for up to 200
/// ms.
///
/// A test passes its own clock to a program whose types name this one: see
/// [`replaced_by`](Self::replaced_by).
#[derive(Clone, Copy)]
pub struct SystemClock(&'static Anchor);

impl SystemClock {
    /// The process's clock.
    #[must_use]
    pub fn new() -> Self {
        static ANCHOR: LazyLock<Anchor> = LazyLock::new(Anchor::new);
        Self(&ANCHOR)
    }

    /// A clock of this type that reads `clock` instead of the system's time, for tests: the backend
    /// keeps the type that the program names, so that no function of it becomes generic over a
    /// clock.
    ///
    /// It may run in either direction, as `clock` does. Each call keeps `clock` and some 150 bytes
    /// until the process ends.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_core::{
    ///     Gcra, Limiter, ManualClock, MemoryBackend, Policy, PolicySet, Rate, SystemClock,
    /// };
    ///
    /// /// The program: its types know nothing of a test's clock.
    /// fn mails(store: MemoryBackend) -> Result<Limiter, throttle_core::ConfigError> {
    ///     Limiter::new(
    ///         store,
    ///         PolicySet::new(Policy::new(
    ///             "mails",
    ///             Gcra::new(Rate::per_hour(20)).burst(1),
    ///         )?)?,
    ///     )
    /// }
    ///
    /// let clock = ManualClock::default();
    /// let store = MemoryBackend::builder()
    ///     .clock(SystemClock::replaced_by(clock.clone()))
    ///     .build();
    /// let mails = mails(store)?;
    /// assert!(mails.check("ada", 1).is_admitted());
    /// assert!(!mails.check("ada", 1).is_admitted());
    /// clock.advance(Duration::from_secs(180));
    /// assert!(mails.check("ada", 1).is_admitted());
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn replaced_by(clock: impl Clock) -> Self {
        // It is always time to look elsewhere, so that reading the system's time is as quick as if
        // there were no replacement.
        let (next_sync, replacement) = (
            AtomicU64::new(0),
            Some(Replacement(Box::new(move || clock.now()))),
        );
        Self(Box::leak(Box::new(Anchor {
            next_sync,
            replacement,
            ..Anchor::new()
        })))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SystemClock")
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed = self.0.elapsed_micros();
        if elapsed >= self.0.next_sync.load(Ordering::Relaxed) {
            return self.0.look_elsewhere(elapsed);
        }
        // In range, as long as the offset is.
        Timestamp(self.0.read(elapsed))
    }
}

const SYNC_EVERY_MICROS: u64 = 10_000_000;
/// A clock counts for 35 years, and begins so long before [`Timestamp::MAX`] that it never gets
/// there: a decision need not check that.
const MOST_ELAPSED: u64 = 1 << 50;
const LATEST_OFFSET: i64 = Timestamp::MAX.as_micros() - MOST_ELAPSED.cast_signed();
const MAX_SLEW_MICROS: i64 = 500_000;
const STEPS_BITS: u32 = 50;

struct Anchor {
    counter: quanta::Clock,
    start: u64,
    /// µs in a step of the counter, in units of 2^-64: elapsed time is one multiplication.
    step: u64,
    /// The current estimate of the wall time at `start`, at most [`LATEST_OFFSET`].
    offset: AtomicI64,
    /// Elapsed time at which to look at the wall clock again, at most [`MOST_ELAPSED`].
    next_sync: AtomicU64,
    /// The latest instant returned. Counters of two processors may disagree by a little, and the
    /// offset may shrink; the guard makes neither visible. It is written at most once per
    /// microsecond, so threads seldom contend for it.
    latest: AtomicI64,
    /// What is read instead.
    replacement: Option<Replacement>,
}

struct Replacement(Box<dyn Fn() -> Timestamp + Send + Sync>);

impl Anchor {
    fn new() -> Self {
        let counter = quanta::Clock::new();
        // So many steps that their nanoseconds give the length of one to fifteen digits or more,
        // and fit 64 bits.
        let nanos = u128::from(counter.delta_as_nanos(0, 1 << STEPS_BITS));
        let step = (nanos << (u64::BITS - STEPS_BITS)) / 1_000;
        Self {
            start: counter.raw(),
            // A counter has more than a million steps a second.
            step: u64::try_from(step).unwrap_or(u64::MAX),
            counter,
            offset: AtomicI64::new(within(wall_micros())),
            next_sync: AtomicU64::new(SYNC_EVERY_MICROS),
            latest: AtomicI64::new(i64::MIN),
            replacement: None,
        }
    }

    #[inline]
    fn elapsed_micros(&self) -> u64 {
        // Counters of two processors may disagree by a little.
        let steps = self.counter.raw().saturating_sub(self.start);
        ((u128::from(steps) * u128::from(self.step)) >> u64::BITS) as u64
    }

    #[inline]
    fn read(&self, elapsed: u64) -> i64 {
        let now = self
            .offset
            .load(Ordering::Relaxed)
            .wrapping_add_unsigned(elapsed);
        let latest = self.latest.load(Ordering::Relaxed);
        if now <= latest {
            return latest;
        }
        match self
            .latest
            .compare_exchange_weak(latest, now, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => now,
            Err(_) => self.latest.fetch_max(now, Ordering::Relaxed).max(now),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_elsewhere(&self, elapsed: u64) -> Timestamp {
        if let Some(Replacement(now)) = &self.replacement {
            return now();
        }
        let elapsed = elapsed.min(MOST_ELAPSED);
        self.follow(elapsed, wall_micros());
        Timestamp(self.read(elapsed))
    }

    /// Moves the offset towards the wall clock. Two threads may do so at the same time without
    /// harm.
    fn follow(&self, elapsed: u64, wall: i64) {
        let next = (elapsed + SYNC_EVERY_MICROS).min(MOST_ELAPSED);
        self.next_sync.store(next, Ordering::Relaxed);
        let offset = self.offset.load(Ordering::Relaxed);
        let error = wall.saturating_sub(offset.saturating_add_unsigned(elapsed));
        let offset = offset.saturating_add(error.max(-MAX_SLEW_MICROS));
        self.offset.store(within(offset), Ordering::Relaxed);
    }
}

fn within(offset: i64) -> i64 {
    offset.clamp(Timestamp::MIN.as_micros(), LATEST_OFFSET)
}

fn wall_micros() -> i64 {
    let micros = |d: std::time::Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_07_never_runs_backwards_across_threads() {
        let clock = SystemClock::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let mut last = clock.now();
                    for _ in 0..100_000 {
                        let now = clock.now();
                        assert!(now >= last);
                        last = now;
                    }
                });
            }
        });
    }

    #[test]
    fn agrees_with_the_wall_clock() {
        let now = SystemClock::new().now().as_micros();
        assert!((now - wall_micros()).abs() < 1_000_000, "{now}");
    }

    #[test]
    fn follows_the_wall_clock_forward_at_once_and_backward_slowly() {
        let anchor = Anchor::new();
        let before = anchor.read(20_000_000);
        anchor.follow(20_000_000, before + 3_600_000_000);
        assert_eq!(anchor.read(20_000_000), before + 3_600_000_000);
        let ahead = anchor.read(20_000_000);
        anchor.follow(20_000_000, ahead - 3_600_000_000);
        assert_eq!(
            anchor.read(20_000_000),
            ahead,
            "stands still instead of stepping back"
        );
        assert_eq!(
            anchor.read(20_500_001),
            ahead + 1,
            "and has lost half a second, no more"
        );
    }

    #[test]
    fn wall_clock_at_either_end_of_time_leaves_the_clock_in_range() {
        let anchor = Anchor::new();
        let in_range = Timestamp::MIN.as_micros()..=Timestamp::MAX.as_micros();
        for wall in [i64::MIN, i64::MAX] {
            anchor.latest.store(i64::MIN, Ordering::Relaxed);
            for elapsed in [0, MOST_ELAPSED - 1, MOST_ELAPSED] {
                anchor.follow(elapsed, wall);
                assert!(in_range.contains(&anchor.read(elapsed)), "{wall} {elapsed}");
                let next = anchor.next_sync.load(Ordering::Relaxed);
                assert!(next <= MOST_ELAPSED, "{next}");
            }
        }
    }

    #[test]
    fn a_clock_shows_its_name_and_no_time() {
        assert_eq!(format!("{:?}", SystemClock::default()), "SystemClock");
    }

    #[test]
    fn replaced_clock_reads_its_replacement_in_both_directions() {
        let hand = crate::ManualClock::default();
        let (clock, other) = (
            SystemClock::replaced_by(hand.clone()),
            SystemClock::replaced_by(hand.clone()),
        );
        for micros in [5, 7_000_000_000_000, -3, 0] {
            hand.set(Timestamp::from_micros(micros));
            assert_eq!(
                [clock.now(), { clock }.now(), other.now()],
                [Timestamp::from_micros(micros); 3]
            );
        }
        assert!(
            SystemClock::new().now() > Timestamp::from_micros(1_000_000_000_000),
            "the process's own is not"
        );
    }

    #[test]
    fn all_instances_read_one_clock() {
        let (one, other) = (SystemClock::new(), SystemClock::default());
        assert!(std::ptr::eq(one.0, other.0));
        let (first, second, third) = (one.now(), other.now(), one.now());
        assert!(first <= second && second <= third);
    }

    /// A clock whose anchor is an hour behind looks at the wall clock when it is time to, and not
    /// again at once.
    #[test]
    fn looks_at_the_wall_clock_every_ten_seconds() {
        let anchor: &'static Anchor = Box::leak(Box::new(Anchor::new()));
        let clock = SystemClock(anchor);
        let offset = anchor.offset.load(Ordering::Relaxed);
        anchor
            .offset
            .store(offset - 3_600_000_000, Ordering::Relaxed);
        assert!(
            clock.now().as_micros() < wall_micros() - 3_000_000_000,
            "it is not time yet"
        );
        anchor.next_sync.store(0, Ordering::Relaxed);
        assert!((clock.now().as_micros() - wall_micros()).abs() < 60_000_000);
        let ahead = anchor.next_sync.load(Ordering::Relaxed) - anchor.elapsed_micros();
        assert!(
            (1..=SYNC_EVERY_MICROS).contains(&ahead),
            "{ahead} µs until the next time"
        );
        assert!(ahead > SYNC_EVERY_MICROS / 2 || anchor.elapsed_micros() > SYNC_EVERY_MICROS / 2);
    }

    #[test]
    fn counts_microseconds_as_the_operating_system_does() {
        let anchor = Anchor::new();
        let start = std::time::Instant::now();
        let first = anchor.elapsed_micros();
        let inner = std::time::Instant::now();
        std::thread::sleep(std::time::Duration::from_millis(40));
        let inner = inner.elapsed().as_micros() as u64;
        let counted = anchor.elapsed_micros() - first;
        let outer = start.elapsed().as_micros() as u64;
        // One percent is more than the two differ by.
        let close = inner - inner / 100 - 2..=outer + outer / 100 + 2;
        assert!(
            close.contains(&counted),
            "{counted} µs of {inner} to {outer}"
        );
    }

    #[test]
    fn a_counter_behind_the_anchor_has_counted_nothing() {
        let mut anchor = Anchor::new();
        anchor.start = anchor.counter.raw() + (1 << 50);
        assert_eq!(anchor.elapsed_micros(), 0);
    }
}
