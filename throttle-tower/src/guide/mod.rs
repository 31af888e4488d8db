//! Longer pages for questions that the front page leaves open. The programs on them are compiled as
//! tests.

/// The five things that a layer does, and how everything else is built on them.
#[doc = include_str!("how_it_fits_together.md")]
pub mod how_it_fits_together {}

/// Counts in memory that survive a restart.
#[doc = include_str!("across_restarts.md")]
pub mod across_restarts {}

/// Keys that do not stop: refused for longer and longer.
#[doc = include_str!("bans.md")]
pub mod bans {}

/// Limits that are decided and refuse no request, before they are enforced.
#[doc = include_str!("auditing.md")]
pub mod auditing {}

/// What happens to used units when a limit's parameters change, and what two limits of one name do.
#[doc = include_str!("changing_limits.md")]
pub mod changing_limits {}

/// Refunds by the response, and estimates that the handler settles.
#[doc = include_str!("charging_by_outcome.md")]
pub mod charging_by_outcome {}

/// Requests that share a budget in classes, the lower ones with a reserve for the higher.
#[doc = include_str!("classes.md")]
pub mod classes {}

/// Keys that are treated differently for a while: exempt, blocked, or under another limit.
#[doc = include_str!("exceptions.md")]
pub mod exceptions {}

/// What a fleet admits while its store is away.
#[doc = include_str!("failing_stores.md")]
#[doc = concat!(
    "<p><img alt=\"Three processes admit 300 requests per second together, also while Redis is \
        down: 100 each\" \
     src='data:image/svg+xml,",
    include_str!("fleet.svg"),
    "'></p>"
)]
pub mod failing_stores {}

/// Limits of requests in flight, and requests that are held instead of refused.
#[doc = include_str!("in_flight_and_waiting.md")]
pub mod in_flight_and_waiting {}

/// From tower_governor, axum-governor, and a Redis script of one's own.
#[doc = include_str!("migrating.md")]
pub mod migrating {}

/// Metrics, events, the keys refused most and a live page.
#[doc = include_str!("observing.md")]
pub mod observing {}

/// Calls to an upstream, delayed to its pace.
#[doc = include_str!("outbound_calls.md")]
pub mod outbound_calls {}

/// Limits that depend on the customer.
#[doc = include_str!("plans.md")]
pub mod plans {}

/// What clients see: headers in several dialects, the response of a refusal, and a status without
/// charge.
#[doc = include_str!("responses.md")]
pub mod responses {}
