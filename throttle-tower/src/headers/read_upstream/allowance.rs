use std::time::Duration;

/// How much may still be used, and the time within which no more than that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) remaining: u64,
    pub(crate) within: Duration,
}

/// The strictest statements in the headers of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpstreamLimits {
    /// How much may still be used until a reset.
    pub(crate) allowance: Option<Allowance>,
    /// How long a call has to wait for a quota that is used up, where the headers state when all of
    /// it is back, or not even that. So a wait that the response states itself is better known.
    pub(crate) used_up: Option<Duration>,
}

impl UpstreamLimits {
    pub(super) fn add(&mut self, remaining: u64, within: Duration) {
        let allowance = Allowance { remaining, within };
        // Nothing left for no time says nothing.
        let says_nothing = remaining == 0 && within.is_zero();
        let is_stricter = |strictest| allowance.is_stricter(strictest);
        if !says_nothing && self.allowance.as_ref().is_none_or(is_stricter) {
            self.allowance = Some(allowance);
        }
    }

    pub(super) fn add_used_up(&mut self, wait: Duration) {
        if !wait.is_zero() {
            self.used_up = self.used_up.max(Some(wait));
        }
    }
}

impl Allowance {
    /// Returns whether it binds the next calls before another one does: less may still be used, or
    /// as little for longer.
    fn is_stricter(&self, other: &Self) -> bool {
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
