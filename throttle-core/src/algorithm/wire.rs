//! The parameters and states of an algorithm as whole numbers.

use smallvec::SmallVec;

use super::transition::Transition;
use crate::time::Timestamp;

/// Whole numbers below 2^53 in magnitude, so that each is exact as a double.
pub(crate) type Numbers = SmallVec<[i64; 3]>;

/// The largest number that is written. An instant may lie a little after [`Timestamp::MAX`].
pub(super) const LARGEST: i64 = 1 << 53;

/// An algorithm whose parameters and states can be written as numbers.
pub(crate) trait Wire: Transition {
    /// One byte for the algorithm and one for its variant.
    fn kind(&self) -> [u8; 2];

    /// Everything that determines how a state is read.
    fn parameters(&self) -> Numbers;

    fn numbers(state: &Self::State) -> Numbers;

    /// The reverse; `None` for numbers that are no state of this algorithm.
    fn state(&self, numbers: &[i64]) -> Option<Self::State>;
}

/// A number from 0 to `most`.
pub(crate) fn amount(number: i64, most: u64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number <= most)
}

/// An instant that a charge can have been made at.
pub(crate) fn instant(number: i64) -> Option<i64> {
    (Timestamp::MIN.as_micros()..=Timestamp::MAX.as_micros()).contains(&number).then_some(number)
}
