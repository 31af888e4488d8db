//! Arrivals, and what a limit makes of them.

use std::time::Duration;

use throttle_core::{Algorithm, Limiter, ManualClock, MemoryBackend, Policy, PolicySet, Timestamp};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// When the requests that arrive in these seconds leave: at once, later, or not at all.
pub(crate) fn run(algorithm: &Algorithm, arrivals: &[i64]) -> Vec<Option<i64>> {
    let clock = ManualClock::default();
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    let policy = Policy::new("per-user", *algorithm).unwrap();
    let limiter = Limiter::new(store, PolicySet::new(policy).unwrap()).unwrap();
    let decide = |second: &i64| {
        clock.set(Timestamp::from_micros(second * 1_000_000));
        let decision = limiter.check("ada", 1);
        let delay = i64::try_from(decision.delay().as_secs()).unwrap();
        decision.is_admitted().then_some(second + delay)
    };
    arrivals.iter().map(decide).collect()
}

/// A time of the axis: `1:30`.
pub(crate) fn shown(second: i64) -> String {
    format!("{}:{:02}", second / 60, second % 60)
}
