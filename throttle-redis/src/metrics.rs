//! Metrics through the facade of the [`metrics`] crate, which Prometheus, StatsD and OpenTelemetry
//! exporters read.
//!
//! Open this page to find out what a metric counts and what to alert on.
//!
//! ```
//! use throttle_redis::{RedisBackend, Single};
//!
//! let redis = Single::new("redis://127.0.0.1:6379")?;
//! let backend = RedisBackend::builder(redis).metrics("api").build()?;
//! assert_eq!(backend.stats().failures, 0, "the same counters without a recorder");
//! # Ok::<_, throttle_core::ConfigError>(())
//! ```
//!
//! Each metric has the label `backend`, the name given here, beside those listed. All values of all
//! labels are known when the backend is built: no metric has a key as a label, so a client cannot
//! add series. A backend without a name reports nothing.
//!
//! | metric | type, unit | labels | counts | alert on |
//! |---|---|---|---|---|
//! | `throttle_redis_decisions_total` | counter | | decisions that the store made | a standstill while requests arrive |
//! | `throttle_redis_failed_decisions_total` | counter | `why`: `unavailable`, `timeout`, `saturated`, `protocol`, `suspended` | decisions that failed, by the [reason](throttle_core::BackendErrorKind) | more than 1 % of all decisions for a minute |
//! | `throttle_redis_unknown_charges_total` | counter | | failed decisions that may have been charged | steady growth: replies are lost or late |
//! | `throttle_redis_cached_refusals_total` | counter | | refusals by the [deny cache](crate::RedisBuilder::deny_cache), without a call | |
//! | `throttle_redis_calls_total` | counter | `result`: `ok`, `late`, `fault`, `malformed`, `unsent`, `abandoned` | script calls that carried decisions, by how they ended | the share of `ok` below 99 % |
//! | `throttle_redis_batch_decisions` | histogram, decisions | | decisions in each of these calls | always near [`max_batch`](crate::RedisBuilder::max_batch): the store is the bottleneck |
//! | `throttle_redis_waiting_decisions` | gauge, decisions | | decisions that wait in this process for a call, or for room at the server | near the [`queue`](crate::RedisBuilder::queue) of a set: further decisions fail as `saturated` |
//! | `throttle_redis_sent_calls_total` | counter | | script calls sent to a server, settlements and repetitions among them: the load on the store | |
//! | `throttle_redis_repeated_calls_total` | counter | | script calls sent again after a reply which proved that they had not run | steady growth, unless a cluster moves slots |
//! | `throttle_redis_loaded_scripts_total` | counter | | script calls that carried the text of the script, because the server did not have it | steady growth: the server restarts or forgets scripts |
//! | `throttle_redis_opened_connections_total` | counter | | connections opened | steady growth: connections break |
//! | `throttle_redis_failed_connections_total` | counter | | attempts to connect that failed | growth for a minute: the store cannot be reached |
//! | `throttle_redis_breakers` | gauge, breakers | `state`: `closed`, `half_open`, `open` | the breakers in each state | `open` above 0 for a minute |
//! | `throttle_redis_breaker_openings_total` | counter | | times that a breaker opened | steady growth: the store fails again and again |
//! | `throttle_redis_failed_settlements_total` | counter | | settlements and refunds that failed, so that their charges stay as they were | steady growth: clients are charged wrongly |
//!
//! A call carries 1 to 64 decisions: an exporter with buckets can take 1, 2, 4, 8, 16, 32 and 64
//! for `throttle_redis_batch_decisions`.
//!
//! # Results of calls
//!
//! | result | meaning |
//! |---|---|
//! | `ok` | the store replied; if a key holds what another program wrote, the decision still fails, as `protocol` |
//! | `late` | the call was sent, and no reply arrived within the deadline |
//! | `fault` | the server replied with an error, or the connection broke |
//! | `malformed` | the reply made no sense: no server that this crate supports sends one |
//! | `unsent` | there was no connection, or the deadline passed before the call could be sent |
//! | `abandoned` | the caller dropped its decision before the reply arrived, or the runtime was stopped |
//!
//! A call counts once, even if it is sent several times. Most decisions travel in one call. There
//! are more for keys in several [slots of a cluster](crate::RedisBuilder::per_key_slot), one for
//! each policy, and for decisions that share a call about a slot that moves to another server: they
//! then have calls of their own. A cached refusal and a decision that fails early, such as
//! `saturated` or `suspended`, travel in none. A decision whose future is dropped counts neither as
//! made nor as failed.
//!
//! # Breakers
//!
//! There is one breaker; on a cluster there is one for each server, and one for finding them. The
//! gauges of backends with the same name add up. A backend that is dropped takes its breakers out
//! of the gauges, and so does a server that leaves a cluster.
//!
//! # When the recorder is installed
//!
//! If there is a recorder when the backend is built, all series exist at once. A recorder that is
//! installed later receives everything from the next event on: earlier events are not counted, and
//! the gauge of the breakers shows all of them. [`RedisBackend::stats`](crate::RedisBackend::stats)
//! counts from the beginning in either case.
//!
//! # Cost
//!
//! A decision costs a few atomic additions, without a lock, an allocation or a look-up. A breaker
//! that changes its state takes a lock.
