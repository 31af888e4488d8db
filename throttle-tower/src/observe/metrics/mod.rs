//! Metrics through the facade of the [`metrics`](::metrics) crate, which Prometheus, StatsD and
//! OpenTelemetry exporters read.
//!
//! Open this page to find out what a metric counts and what to alert on.
//!
//! ```
//! use throttle_tower::metrics::Metrics;
//! use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
//!
//! # fn main() -> Result<(), throttle_tower::ConfigError> {
//! let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10)).burst(20)).by(ClientIp::peer());
//! let throttle = ThrottleLayer::builder(per_ip).observe(Metrics::new("api")).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! Install the recorder before the first request: counters and histograms count from it on. Gauges
//! show the true level even if the recorder comes late. The exporter must use the same version of
//! the `metrics` crate as this crate, 0.24, or it receives nothing.
//!
//! Each request increments its counters before it is answered or passed on, without a task or a
//! timer: three, and three for each limit at most. A limit that does not apply costs one of them,
//! which matters only for hundreds of limits.
//!
//! All labels are known when the layer is built: no metric has a key, a path or a header as a
//! label, so a client cannot add series. A series that can never count is not there, such as those
//! of a failing store where limits are in memory. Each metric also has the label `layer`, the name
//! given to [`Metrics::new`].
//!
//! The facade cannot remove a series. If a limit is renamed or removed while the layer runs, its
//! series, about 19 of each name, stay until the process ends. So names of limits belong to a fixed
//! list: a name that is made of a version or a date adds its series with each reload. Leave an
//! exporter's idle timeout off for counters: it drops the series of a limit that has had no
//! requests for a while, and the layer keeps the handle of the dropped one.
//!
//! # Of a [`ThrottleLayer`](crate::ThrottleLayer)
//!
//! | metric | type, unit | labels | counts | alert on |
//! |---|---|---|---|---|
//! | `throttle_requests_total` | counter | `outcome` (`admitted`, `refused`, `missing_key`, `no_permit`, `failed_open`, `failed_closed`) | requests, each once: see [`Outcome`](crate::Outcome) | the share of `refused`; any `failed_open` or `failed_closed` |
//! | `throttle_decisions_total` | counter | `policy`, `result` (`admitted`, `near`, `refused`, `would_refuse`), `class` (of a limit with classes) | decisions of each policy by the request's [class](crate::Limit::priority): `near` is admitted when at least the part of the capacity is used that [`warn_at`](crate::Limit::warn_at) says, by default four fifths (for a class, of what is beyond its reserve), also if another policy refuses the request; an [audited](crate::Limit::audit) policy has `would_refuse` instead of `refused`. A policy counts nothing for a request to which it does not apply, or while it is [open](crate::OnError::Open) because the store fails | `near`, before clients are refused; `would_refuse`, before a limit is enforced |
//! | `throttle_binding_total` | counter | `policy` | refusals by the policy that they come from | |
//! | `throttle_units_total` | counter, units | `policy`, `kind` (`charged`, `refunded`, `settled_short`) | units charged; given back; and used beyond what was charged, which are debited as far as any are left | `settled_short`: estimates are too low |
//! | `throttle_overflow_total` | counter | `policy` | decisions about keys that share an overflow bucket because the store in memory is full | any: raise its `max_keys` |
//! | `throttle_bans_total` | counter | `policy` | [bans](crate::Limit::ban) that strikes have begun; only of limits that ban | a sudden rise: an attack, or a client of yours that retries too soon |
//! | `throttle_keys` | gauge, keys | | keys that the store in memory holds; if several layers share a [`Metrics`], those of all their stores | near its `max_keys` |
//! | `throttle_store_seconds` | histogram, seconds | `result` (`decided`, `failed`), `why` (`none` if it decided; `unavailable`, `timeout`, `saturated`, `protocol`, `suspended`, `unsupported`) | how long decisions of a store took; none in memory | a high quantile near the deadline |
//! | `throttle_degraded_total` | counter | `decided_by` (`local`, `open`, `closed`), `why` (as above, but for `none`) | requests that the store did not decide | any |
//! | `throttle_queued_requests` | gauge, requests | `policy` | requests that wait now ([`wait_up_to`](crate::Limit::wait_up_to)) | near `max_waiting` |
//! | `throttle_queue_seconds` | histogram, seconds | `policy` | how long requests waited, those that left without a turn included | |
//! | `throttle_in_flight` | gauge, permits | `name` | permits of a limit on [requests in flight](crate::InFlight) that are taken | at its maximum for long |
//! | `throttle_plan_lookups_total` | counter | `policy`, `result` (`remembered`, `found`, `unknown`, `failed`, `invalid`, `turned_away`) | tiers of [plans](mod@crate::plans): from the cache, looked up, not known to the lookup, failed or late, looked up with parameters that the limit cannot have, and not looked up because too many lookups ran. If several layers have the same plans, each reports the lookups of its own requests | `failed`, `invalid`, `turned_away` |
//! | `throttle_candidate_total` | counter | `candidate`, `result` (`both_admit`, `both_refuse`, `would_refuse`, `would_admit`, `not_decided`) | requests by what a [candidate](crate::Candidate::metrics) would have done to them. What it decides in the background is counted when it is decided | `not_decided` |
//!
//! # Of a [`ShapeLayer`](crate::ShapeLayer::metrics)
//!
//! | metric | type, unit | labels | counts | alert on |
//! |---|---|---|---|---|
//! | `throttle_shape_calls_total` | counter | `outcome` (`sent`, `refused`, `paused`, `cancelled`) | calls that left; were refused without a pause; were refused because of a pause; were dropped while they waited | `refused`, `paused` |
//! | `throttle_shape_degraded_total` | counter | | calls that the store did not decide | any |
//! | `throttle_shape_refusals_total` | counter | `told` (`wait`, `reset`, `nothing`) | calls that the upstream refused, as far as it is [obeyed](crate::ShapeLayer::obey_upstream), by what it stated | `nothing`: the pace is above the upstream's limit |
//! | `throttle_shape_paused_keys` | gauge, keys | | keys that are paused. A pause that has ended counts until the key's next call or response, or for about a minute; without any call, longer | any for long |
//! | `throttle_shape_waiting_calls` | gauge, calls | | calls that wait now | near `max_waiting` |
//! | `throttle_shape_wait_seconds` | histogram, seconds | | how long calls waited, of those that had to | near the [`max_wait`](crate::Pace::max_wait) of the pace |
//!
//! What a Redis backend reports is listed in the docs of `throttle-redis`.

mod count;
mod describe;
mod handles;
mod level;
mod shape;
#[cfg(test)]
mod tests;
mod throttle;

pub(crate) use shape::ShapeMetrics;
pub use throttle::Metrics;
