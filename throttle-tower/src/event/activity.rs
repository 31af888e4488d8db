use std::time::Duration;

use throttle_core::BackendErrorKind;

/// What a layer does apart from deciding a request, passed to
/// [`Observer::happened`](crate::Observer::happened).
///
/// `limit` is the index of a limit in [`LayerInfo::limits`](crate::LayerInfo::limits). Units are
/// those of the limit, by default requests.
///
/// ```
/// use throttle_tower::Activity;
///
/// /// The units by which an activity changes what is charged.
/// fn charged(activity: &Activity) -> i128 {
///     match *activity {
///         Activity::Charged { units, .. } => units.into(),
///         Activity::Refunded { units, .. } => -i128::from(units),
///         _ => 0,
///     }
/// }
/// assert_eq!(charged(&Activity::Refunded { limit: 0, units: 3 }), -3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// A store that can fail has decided a request, or has failed to. A store in memory does not
    /// report it.
    Answered {
        /// The time since the store was called.
        after: Duration,
        /// Why there is no decision. `None` if there is one.
        failed: Option<BackendErrorKind>,
    },
    /// A request has joined the queue of a limit with
    /// [`wait_up_to`](crate::Limit::wait_up_to).
    Queued {
        /// Its index.
        limit: usize,
    },
    /// A request has left the queue, with or without a turn.
    LeftQueue {
        /// Its index.
        limit: usize,
        /// How long the request was in the queue.
        after: Duration,
    },
    /// A request has taken permits of a limit on [requests in flight](crate::InFlight).
    TookPermits {
        /// Its index.
        limit: usize,
        /// How many.
        permits: u64,
    },
    /// A request has returned permits. They may have been taken under limits that were replaced
    /// since; the observer of those limits receives it.
    ReturnedPermits {
        /// Its index.
        limit: usize,
        /// How many.
        permits: u64,
    },
    /// The tier of an identity was found, for a limit of [`plans`](mod@crate::plans). A lookup that
    /// several requests wait for is reported once.
    LookedUp {
        /// Its index.
        limit: usize,
        /// `remembered`, `found`, `unknown`, `failed`, `invalid` or `turned_away`.
        result: &'static str,
    },
    /// Units were given back after their decision.
    Refunded {
        /// Its index.
        limit: usize,
        /// How many.
        units: u64,
    },
    /// Units were charged in addition to those of the decision.
    Charged {
        /// Its index.
        limit: usize,
        /// How many.
        units: u64,
    },
    /// A request has used more units than it was charged. They are debited as far as units are
    /// left.
    SettledShort {
        /// Its index.
        limit: usize,
        /// How many more.
        units: u64,
    },
    /// A strike has begun a [ban](crate::Limit::ban).
    Banned {
        /// Its index.
        limit: usize,
    },
}
