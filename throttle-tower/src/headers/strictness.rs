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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_for_longer_is_the_stricter_statement() {
        assert!(strictness(1, 1) < strictness(2, 9));
        assert!(strictness(1, 9) < strictness(1, 8), "as much for a longer time");
        assert_eq!(strictness(1, 9), strictness(1, 9));
    }

    #[test]
    fn rates_are_compared_only_where_both_windows_are_stated() {
        for (one, other, expected) in [
            ((10, Some(1)), (60, Some(6)), Ordering::Equal),
            ((10, Some(1)), (61, Some(6)), Ordering::Less),
            ((10, Some(1)), (59, Some(6)), Ordering::Greater),
            ((10, Some(1)), (60, None), Ordering::Less),
            ((10, None), (9, Some(6)), Ordering::Greater),
            ((10, None), (10, None), Ordering::Equal),
        ] {
            assert_eq!(compare_rates(one, other), expected, "{one:?} and {other:?}");
            assert_eq!(compare_rates(other, one), expected.reverse(), "{other:?} and {one:?}");
        }
    }

    #[test]
    fn one_of_each_group_of_rivals_stays() {
        let staying = |items: &[(char, u64)]| {
            let stays = |at: &usize| !gives_way(items, *at, |a, b| a.0 == b.0, |a, b| a.1.cmp(&b.1));
            (0..items.len()).filter(stays).collect::<Vec<_>>()
        };
        assert_eq!(staying(&[('a', 2), ('b', 9), ('a', 1), ('a', 1)]), [1, 2], "the first of the strictest");
        assert_eq!(staying(&[('a', 1), ('a', 2)]), [0]);
        assert!(gives_way(&[1], 1, |_, _| true, Ord::cmp), "there is no such item");
    }
}
