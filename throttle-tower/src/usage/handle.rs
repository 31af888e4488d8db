use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::account::Account;

/// What a request was charged by limits that are [settled later](crate::Limit::settled_later): a handler says here what it
/// really used.
///
/// The layer puts it into the extensions of every request that it lets through, if one of its limits is settled later; of
/// several stacked layers, the innermost's is found. With the feature `axum` of this crate it is an extractor. Clones are the same charge:
/// one may go along with a stream.
///
/// ```
/// # #[cfg(feature = "axum")] mod example {
/// use throttle_tower::Usage;
/// use throttle_tower::usage::UsageError;
///
/// async fn complete(usage: Usage, prompt: String) -> Result<String, UsageError> {
///     let answer = format!("you said: {prompt}");
///     usage.settle("tokens", answer.split_whitespace().count() as u64)?;
///     Ok(answer)
/// }
/// # }
/// ```
///
/// # When it is final
///
/// Each limit's charge is corrected once:
///
/// * when the handler [settles](Self::settle) it: at once, at that total;
/// * else when a [refund rule](crate::Limit::refund_if) applies to the response's head: nothing is charged;
/// * else when the response's body has ended or is dropped, or the request is given up before: at the running total that was
///   [added](Self::add) up, or, if nothing was, at the estimate. For a response that switches protocols that is soon: settle
///   such charges when the connection ends, by a [`Limiter`](crate::Limiter) of your own.
///
/// What is used after that is not counted: see [`UsageError::Settled`].
///
/// # Running charges
///
/// Where the running total outgrows what is held, as much again as the estimate is charged, or what is left of the limit
/// if that is less, or more where the total has grown by more: so other requests see it while the response still streams.
/// One such step is under way at a time for each limit. Once the limit is exhausted, [`add`](Self::add) says so, and it is
/// asked again when the total has grown by another estimate. A running charge is of the moment when it is made, like any
/// request's; what of it turns out to be too much goes back to the window it came from.
///
/// # Failures
///
/// Nothing here waits or fails because of the store. What it could not do is counted
/// ([`ThrottleLayer::settlements`](crate::ThrottleLayer::settlements)) and stays charged. In memory all is done at once. On a
/// store that has to be waited for, steps are spawned on the tokio runtime that is current, or else on the one that the
/// request came in on. Without one, a store that can fail is not asked, and the step counts as failed.
///
/// # Cancel safety
///
/// Nothing is async: what was told is told. A handler that is dropped at any point has its charge made final as above.
#[derive(Clone)]
pub struct Usage(Arc<Account>);

impl Usage {
    pub(crate) const fn new(account: Arc<Account>) -> Self {
        Self(account)
    }

    /// The names that can be settled here: of the layer's limits that are settled later, in the order given. One that does
    /// not apply to the request is among them; what it is told changes nothing.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Units taken of a policy so far: the estimate, and running charges. 0 where it did not apply, and for a name that is
    /// not among the [policies](Self::policies). What settling gives back does not lessen it.
    #[must_use]
    pub fn taken(&self, policy: &str) -> u64 {
        self.0.read(policy, |tally| tally.held()).unwrap_or(0)
    }

    /// The running total that was [added](Self::add) up; `None` before anything was.
    #[must_use]
    pub fn used(&self, policy: &str) -> Option<u64> {
        self.0.read(policy, |tally| tally.used())?
    }

    /// Adds `units` to the running total of what was used. Adding 0 begins it: what was estimated then counts no more.
    ///
    /// False if the total is more than could be charged: the limit is exhausted, and a handler may stop here. While the
    /// store is being asked it is true.
    ///
    /// # Errors
    ///
    /// If there is no such policy, or its charge is final.
    pub fn add(&self, policy: &str, units: u64) -> Result<bool, UsageError> {
        self.0.tell(policy, |tally, steps| tally.add(units, steps))?;
        // Asked afterwards: in memory the answer is there already.
        Ok(self.0.read(policy, |tally| tally.is_covered()).unwrap_or(true))
    }

    /// Makes it a charge of `actual` units in all, whatever was added before, and final. What is more than was taken is
    /// charged as far as something is left in the window of the latest charge.
    ///
    /// # Errors
    ///
    /// If there is no such policy, or its charge is final.
    pub fn settle(&self, policy: &str, actual: u64) -> Result<(), UsageError> {
        self.0.tell(policy, |tally, steps| tally.close(Some(actual), steps))
    }

    /// [Settles](Self::settle) each of the [policies](Self::policies) that is not final yet at `actual`.
    ///
    /// # Errors
    ///
    /// If all were final.
    pub fn settle_all(&self, actual: u64) -> Result<(), UsageError> {
        if self.0.settle_all(actual) {
            return Ok(());
        }
        let names: Vec<&str> = self.policies().collect();
        Err(UsageError::Settled { name: names.join(", ") })
    }

    /// Gives back what each of the [policies](Self::policies) took that is not final yet.
    ///
    /// # Errors
    ///
    /// If all were final.
    pub fn refund(&self) -> Result<(), UsageError> {
        self.settle_all(0)
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.policies().map(|policy| (policy, self.taken(policy)));
        f.debug_map().entries(taken).finish()
    }
}

/// A [`Usage`] was told something that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UsageError {
    /// No limit of that name is [settled later](crate::Limit::settled_later).
    UnknownPolicy {
        /// What was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The charge is final: it was settled before, a refund rule applied, or the response has ended.
    Settled {
        /// Whose charge it is; all of them, where all were told.
        name: String,
    },
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPolicy { name, known } => {
                write!(f, "no limit named {name:?} is settled later; those that are: {}", known.join(", "))
            }
            Self::Settled { name } => write!(f, "the usage of {name:?} is final already"),
        }
    }
}

impl Error for UsageError {}
