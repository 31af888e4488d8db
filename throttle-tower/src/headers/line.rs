//! What the fields say about one policy, and the numbers they may say it with.

use std::cmp::{Ordering, Reverse};

use super::digits;
use super::quota::Quota;

/// What a policy announces, the same in every response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    /// A public alias: every client reads it.
    pub(crate) name: &'a str,
    pub(crate) quota: Quota,
    /// What is counted; `None` for requests, which go without saying.
    pub(crate) unit: Option<&'a str>,
}

/// Where one client stands with one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) terms: Terms<'a>,
    pub(crate) remaining: u64,
    /// The time within which no more than `remaining` may be used; for a violated policy, the wait.
    pub(crate) effective_us: u64,
    /// The time until the key cannot be told from an unused one.
    pub(crate) reset_us: u64,
    pub(crate) violated: bool,
    /// For a violated policy only: `None` when no wait can help.
    pub(crate) retry_us: Option<u64>,
}

impl Line<'_> {
    /// At most the quota, or a client would compute a negative number of units used.
    pub(super) fn r(&self) -> u64 {
        self.remaining.min(self.terms.quota.q)
    }

    pub(super) fn t(&self) -> u64 {
        digits::seconds(self.effective_us)
    }
}

/// Orders what may be said about one name, the stricter first: least, and of equal amounts the one that has to last
/// longer.
pub(super) type Strictness = (u64, Reverse<u64>);

pub(super) fn strictness(r: u64, t: u64) -> Strictness {
    (r, Reverse(t))
}

/// Compares two quotas by the rate they amount to, `Less` being the stricter. A list member may leave its window out;
/// then only the quotas are comparable.
pub(super) fn compare_rates((q, w): (u64, Option<u64>), (other_q, other_w): (u64, Option<u64>)) -> Ordering {
    match (w, other_w) {
        (Some(w), Some(other_w)) => (u128::from(q) * u128::from(other_w)).cmp(&(u128::from(other_q) * u128::from(w))),
        _ => q.cmp(&other_q),
    }
}

/// Whether the item at `index` gives way to a rival: a stricter one, or an equal one that comes first. Of any group of
/// rivals exactly one stays, as long as `strictness` orders them totally.
pub(super) fn gives_way<T>(
    items: &[T],
    index: usize,
    rivals: impl Fn(&T, &T) -> bool,
    strictness: impl Fn(&T, &T) -> Ordering,
) -> bool {
    let Some(item) = items.get(index) else { return true };
    items.iter().enumerate().any(|(at, other)| {
        at != index
            && rivals(item, other)
            && match strictness(other, item) {
                Ordering::Less => true,
                Ordering::Equal => at < index,
                Ordering::Greater => false,
            }
    })
}
