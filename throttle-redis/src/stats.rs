use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $count:ident;)*) => {
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

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            $(pub(crate) fn $count(&self) {
                self.$name.fetch_add(1, Ordering::Relaxed);
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
    failures, failed;
    /// Failed decisions of which it is not known whether they were charged.
    unknown, left_unknown;
    /// Refusals that the deny cache answered.
    cached_refusals, denied;
    /// Script calls that carried decisions; fewer than decisions where they were batched.
    calls, called;
    /// Calls that were repeated after an answer that proved that they had not run.
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
