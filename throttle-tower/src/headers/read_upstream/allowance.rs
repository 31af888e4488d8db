use std::cmp::Ordering;
use std::time::Duration;

/// How much may still be used, and the time within which no more than that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) remaining: u64,
    pub(crate) within: Duration,
}

impl Allowance {
    /// Compares the paces that two allowances ask for; `Greater` is the slower one.
    pub(super) fn slowness(&self, other: &Self) -> Ordering {
        match (self.remaining, other.remaining) {
            (0, 0) => self.within.cmp(&other.within),
            (own, others) => {
                let scaled =
                    |within: Duration, by: u64| within.as_nanos().saturating_mul(u128::from(by));
                scaled(self.within, others).cmp(&scaled(other.within, own))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_paces_the_first_counts_and_nothing_is_slower_than_nothing() {
        let of = |remaining, seconds| Allowance {
            remaining,
            within: Duration::from_secs(seconds),
        };
        for (one, other, slowness) in [
            (of(0, 5), of(0, 5), Ordering::Equal),
            (of(0, 6), of(0, 5), Ordering::Greater),
            (of(0, 1), of(9, 1_000), Ordering::Greater),
            (of(9, 1_000), of(0, 1), Ordering::Less),
            (of(2, 4), of(3, 6), Ordering::Equal),
            (of(2, 5), of(3, 6), Ordering::Greater),
            (of(2, 4), of(3, 7), Ordering::Less),
            (
                of(1 << 40, 1 << 41),
                of(1 << 40, (1 << 41) - 1),
                Ordering::Greater,
            ),
        ] {
            assert_eq!(one.slowness(&other), slowness, "{one:?} and {other:?}");
        }
    }
}
