use std::time::Duration;

/// How much may still be used, and the time within which no more than that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) remaining: u64,
    pub(crate) within: Duration,
}

impl Allowance {
    /// Returns whether it binds the next calls before another one does: less may still be used, or
    /// as little for longer.
    pub(super) fn is_stricter(&self, other: &Self) -> bool {
        (other.remaining, self.within) > (self.remaining, other.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_that_remains_is_stricter_and_of_equals_the_longer_time() {
        let of = |remaining, seconds| Allowance {
            remaining,
            within: Duration::from_secs(seconds),
        };
        for (one, other, is_stricter) in [
            (of(0, 5), of(0, 5), false),
            (of(0, 6), of(0, 5), true),
            (of(0, 1), of(9, 1_000), true),
            (of(9, 1_000), of(0, 1), false),
            (of(2, 4), of(3, 6_000), true),
            (of(3, 5), of(3, 6), false),
        ] {
            assert_eq!(
                one.is_stricter(&other),
                is_stricter,
                "{one:?} and {other:?}"
            );
        }
    }
}
