//! Which of two statements about limits is the stricter one.

use std::cmp::{Ordering, Reverse};

/// Orders two statements about one policy, the stricter first: the smaller amount, and of equal amounts the one that
/// has to last longer.
pub(super) type Strictness = (u64, Reverse<u64>);

pub(super) fn strictness(r: u64, t: u64) -> Strictness {
    (r, Reverse(t))
}

/// Compares two quotas by the rate they amount to; `Less` is the stricter one. A list member may leave out its window,
/// and then only the quotas are comparable.
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
