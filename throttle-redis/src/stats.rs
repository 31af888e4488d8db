use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::BackendErrorKind;

use crate::breaker::Breaker;
use crate::observed::{Label, Observed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $count:ident $(($argument:ident: $type:ty))?;)*) => {
        /// Counters of a backend and its clones since they were created. They only increase.
        ///
        /// ```
        /// let backend = throttle_redis::RedisBackend::new("redis://127.0.0.1:1")?;
        /// assert_eq!(backend.stats().decisions, 0);
        /// # Ok::<_, throttle_core::ConfigError>(())
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug)]
        pub(crate) struct Counters {
            $($name: AtomicU64,)*
            pub(crate) observed: Observed,
        }

        impl Counters {
            /// The counters of a backend with these breakers.
            pub(crate) fn new(label: Label, breakers: &Arc<[Breaker]>) -> Self {
                Self { $($name: AtomicU64::new(0),)* observed: Observed::new(label, breakers) }
            }

            $(pub(crate) fn $count(&self $(, $argument: $type)?) {
                self.$name.fetch_add(1, Ordering::Relaxed);
                self.observed.$count($($argument)?);
            })*

            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Decisions the store made.
    decisions, decided;
    /// Decisions that failed, for any reason.
    failures, failed(kind: BackendErrorKind);
    /// Failed decisions of which it is not known whether they were charged.
    unknown, left_unknown;
    /// Refusals that the deny cache answered.
    cached_refusals, denied;
    /// Script calls sent, repetitions and settlements among them; fewer than decisions where those were batched.
    calls, called;
    /// Calls that were repeated after an answer that proved that they had not run. A call that is repeated as several
    /// calls, one for each of its decisions, counts once.
    repeated, repeat;
    /// Scripts loaded into a server.
    scripts_loaded, loaded;
    /// Connections opened.
    connections, connected;
    /// Attempts to connect that failed.
    failed_connections, connecting_failed;
    /// Times a breaker opened.
    breaker_openings, breaker_opened;
    /// Settlements, refunds among them, that failed.
    failed_settlements, settling_failed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_counted_in_its_own_counter() {
        let counters = Counters::new(Label::default(), &Arc::from([]));
        assert_eq!(counters.read(), Stats::default());
        let count: [&dyn Fn(); 11] = [
            &|| counters.decided(),
            &|| counters.failed(BackendErrorKind::Timeout),
            &|| counters.left_unknown(),
            &|| counters.denied(),
            &|| counters.called(),
            &|| counters.repeat(),
            &|| counters.loaded(),
            &|| counters.connected(),
            &|| counters.connecting_failed(),
            &|| counters.breaker_opened(),
            &|| counters.settling_failed(),
        ];
        for (times, count) in count.into_iter().enumerate() {
            (0..=times).for_each(|_| count());
        }
        let expected = Stats {
            decisions: 1,
            failures: 2,
            unknown: 3,
            cached_refusals: 4,
            calls: 5,
            repeated: 6,
            scripts_loaded: 7,
            connections: 8,
            failed_connections: 9,
            breaker_openings: 10,
            failed_settlements: 11,
        };
        assert_eq!(counters.read(), expected);
    }
}
