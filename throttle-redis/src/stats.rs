//! What a backend counts: each number with its documentation and its metric.

macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident, $count:ident, $metric:expr;)*) => {
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
            $($(#[doc = $text])* pub $name: u64,)*
        }

        /// What is counted.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Count {
            $($count,)*
        }

        /// The metric of each counter that has one without labels of its own, and what it counts.
        #[cfg(feature = "metrics")]
        pub(crate) const METRICS: [(Option<&str>, &str); COUNTS] = [$(($metric, concat!($($text),*))),*];

        pub(crate) const COUNTS: usize = [$(Count::$count),*].len();

        impl Stats {
            pub(crate) fn of([$($name),*]: [u64; COUNTS]) -> Self {
                Self { $($name),* }
            }
        }
    };
}

counters! {
    /// Decisions that the store made.
    decisions, Decided, Some("throttle_redis_decisions_total");
    /// Decisions that failed, for any reason.
    failures, Failed, None;
    /// Failed decisions of which it is not known whether they were charged.
    unknown, LeftUnknown, Some("throttle_redis_unknown_charges_total");
    /// Refusals that the deny cache made without a call.
    cached_refusals, Denied, Some("throttle_redis_cached_refusals_total");
    /// Script calls sent to a server, settlements and repetitions among them.
    calls, Called, Some("throttle_redis_sent_calls_total");
    /// Script calls sent again after a reply which proved that they had not run.
    repeated, Repeated, Some("throttle_redis_repeated_calls_total");
    /// Script calls that carried the text of the script, because the server did not have it.
    scripts_loaded, Loaded, Some("throttle_redis_loaded_scripts_total");
    /// Connections opened. Those of a pool, and those to the servers of a cluster, count as one.
    connections, Connected, Some("throttle_redis_opened_connections_total");
    /// Attempts to connect that failed.
    failed_connections, ConnectingFailed, Some("throttle_redis_failed_connections_total");
    /// Times that a breaker opened.
    breaker_openings, BreakerOpened, Some("throttle_redis_breaker_openings_total");
    /// Settlements and refunds that failed.
    failed_settlements, SettlingFailed, Some("throttle_redis_failed_settlements_total");
}
