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
    /// The byte that names the algorithm.
    const LETTER: u8;

    /// How many parameters there are.
    const PARAMETERS: usize = 3;

    /// The byte that names its variant.
    fn variant(&self) -> u8 {
        b'0'
    }

    /// What its tag begins with.
    fn kind(&self) -> [u8; 2] {
        [Self::LETTER, self.variant()]
    }

    /// Everything that determines how a state is read.
    fn parameters(&self) -> Numbers;

    fn numbers(state: &Self::State) -> Numbers;

    /// The reverse; `None` for numbers that are no state of this algorithm.
    fn state(&self, numbers: &[i64]) -> Option<Self::State>;
}

/// So many numbers, if none is negative.
pub(crate) fn amounts<const N: usize>(numbers: &[i64]) -> Option<[u64; N]> {
    let numbers: &[i64; N] = numbers.try_into().ok()?;
    numbers
        .iter()
        .all(|number| *number >= 0)
        .then(|| numbers.map(i64::cast_unsigned))
}

/// A number from 0 to `most`.
pub(crate) fn amount(number: i64, most: u64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number <= most)
}

/// An instant that a charge can have been made at.
pub(crate) fn instant(number: i64) -> Option<i64> {
    (Timestamp::MIN.as_micros()..=Timestamp::MAX.as_micros())
        .contains(&number)
        .then_some(number)
}

pub(super) fn write(bytes: &mut Vec<u8>, numbers: &[i64]) {
    bytes.extend(numbers.iter().flat_map(|number| double(*number)));
}

pub(super) fn double(number: i64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

/// Nothing if a number is missing a byte, is not whole or is too large.
pub(super) fn read(bytes: &[u8]) -> Option<Numbers> {
    let (doubles, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return None;
    }
    let whole = |double: &[u8; 8]| {
        let number = f64::from_le_bytes(*double);
        let whole = number as i64;
        (whole as f64 == number && (-LARGEST..=LARGEST).contains(&whole)).then_some(whole)
    };
    doubles.iter().map(whole).collect()
}
