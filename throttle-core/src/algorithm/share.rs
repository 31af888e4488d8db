use std::num::NonZeroU32;

use super::kind::Algorithm;
use super::transition::Transition;
use super::{Kind, each};

impl Algorithm {
    /// Returns the part of the limit that one of `processes` processes may use when they cannot
    /// coordinate: the same algorithm at 1/N.
    ///
    /// Rates are divided exactly. A burst, a capacity, a refill and a limit are divided and rounded
    /// down, to 1 at least. So N shares together never admit more than the limit itself, in any
    /// stretch of time, except in these cases:
    ///
    /// * A burst below N: each share has a burst of 1, so N units may be admitted at one instant.
    ///   The rate is still exact.
    /// * A refill below N: each share gets 1 unit per refill and is refilled less often, so that
    ///   the shares together do not exceed the rate. Up to N units may come at one instant.
    /// * A limit of a window or a quota below N: each share admits 1 unit per window, so N shares
    ///   admit N units.
    /// * A [`LeakyBucket`](super::LeakyBucket) lets an idle key's first unit leave at once, and so
    ///   does each share. So N units may leave together. The longest wait stays the same.
    ///
    /// A share is always valid. If a share's exact rate needs numbers beyond 2^53, the rate is
    /// rounded down to one unit in a whole number of microseconds (142 years at most). A longest
    /// wait or a capacity that needs such numbers is reduced.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use throttle_core::{Gcra, Rate};
    ///
    /// let four = NonZeroU32::new(4).expect("four is not zero");
    /// let share = Gcra::new(Rate::per_second(10)).burst(30).build()?.share(four);
    /// assert_eq!(share, Gcra::new("5/2s".parse()?).burst(7).build()?);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn share(&self, processes: NonZeroU32) -> Self {
        let n = u64::from(processes.get());
        if n == 1 {
            return *self;
        }
        let (kind, rate) = each!(&self.kind, algorithm => {
            let (share, rate) = algorithm.share(self.rate, n);
            (share.into(), rate)
        });
        Self { kind, rate }
    }
}
