use throttle_core::{ConfigError, DecidedBy, Status};

/// From which part of its capacity on a key is near the end of a limit, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarnAt(u32);

/// Four fifths.
impl Default for WarnAt {
    fn default() -> Self {
        Self(800_000)
    }
}

impl WarnAt {
    const WHOLE: u32 = 1_000_000;

    /// # Errors
    ///
    /// If it is not a part.
    pub(crate) fn of(part: f64) -> Result<Self, ConfigError> {
        // A number out of range becomes the nearest one, and none becomes 0.
        #[expect(
            clippy::float_arithmetic,
            reason = "once for a limit; requests are compared with an integer"
        )]
        let millionths = (part * f64::from(Self::WHOLE)).round() as u32;
        if (1..Self::WHOLE).contains(&millionths) {
            return Ok(Self(millionths));
        }
        let rule = "it is a part of the limit's capacity, from 0.000001 to 0.999999, as in 0.8 \
            for four fifths";
        Err(ConfigError::new("warn_at", part, rule))
    }

    #[cfg(feature = "metrics")]
    pub(crate) const fn of_millionths(millionths: u32) -> Self {
        Self(millionths)
    }

    pub(crate) const fn millionths(self) -> u32 {
        self.0
    }

    /// Whether at least this part of `most` is used. What this process decides by its share of a
    /// limit says nothing of the whole limit, and what an exception of the key decides nothing of
    /// the policy's own.
    pub(crate) fn is_near(self, most: u64, status: &Status) -> bool {
        let is_of_the_limit = status.decided_by() == DecidedBy::Store && !status.is_excepted();
        is_of_the_limit && status.remaining() <= self.left(most)
    }

    /// Whether it is so because of the request's own charge.
    pub(crate) fn is_reached(self, most: u64, status: &Status) -> bool {
        self.is_near(most, status)
            && status.remaining().saturating_add(status.charged()) > self.left(most)
    }

    /// What is left of `most` at the most.
    fn left(self, most: u64) -> u64 {
        let used = (u128::from(most) * u128::from(self.0)).div_ceil(Self::WHOLE.into());
        most - u64::try_from(used).unwrap_or(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_is_used_from_the_first_whole_unit_on() {
        for (part, most, left) in [
            (0.8, 1, 0),
            (0.8, 4, 0),
            (0.8, 5, 1),
            (0.8, 10, 2),
            (0.8, 11, 2),
            (0.5, 3, 1),
            (0.000_001, 10, 9),
            (0.999_999, 10, 0),
            (0.999_999, 2_000_000, 2),
            (0.5, u64::MAX, u64::MAX / 2),
        ] {
            assert_eq!(
                WarnAt::of(part).unwrap().left(most),
                left,
                "{part} of {most}"
            );
        }
        assert_eq!(WarnAt::default(), WarnAt::of(0.8).unwrap());
    }

    #[test]
    fn what_is_no_part_is_an_error_that_names_it() {
        for (part, shown) in [
            (0.0, "0"),
            (1.0, "1"),
            (80.0, "80"),
            (-0.5, "-0.5"),
            (0.000_000_4, "0.0000004"),
            (f64::NAN, "NaN"),
        ] {
            let error = WarnAt::of(part).unwrap_err();
            assert_eq!((error.field(), error.value()), ("warn_at", shown));
        }
        assert!(WarnAt::of(f64::INFINITY).is_err() && WarnAt::of(0.999_999_9).is_err());
    }
}
