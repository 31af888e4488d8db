//! A share of keys.

use std::fmt;
use std::str::FromStr;

use crate::time::decimal;

/// A percentage, in millionths of a percent, so that counting stays exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u64);

impl Percent {
    const ONE: i64 = 1_000_000;

    /// How many of `all` this is, rounded down.
    pub fn of(self, all: usize) -> usize {
        let part = all as u128 * u128::from(self.0) / (100 * Self::ONE as u128);
        usize::try_from(part).unwrap_or(all)
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text
            .strip_suffix('%')
            .and_then(|number| decimal(number.trim_end(), Self::ONE));
        let millionths = number.and_then(|(millionths, _)| u64::try_from(millionths).ok());
        let within = millionths.filter(|millionths| *millionths <= 100 * Self::ONE as u64);
        within
            .map(Self)
            .ok_or_else(|| "it must be a percentage from 0% to 100%, as in 0.1%".to_owned())
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!(
            "{}.{:06}",
            self.0 / Self::ONE as u64,
            self.0 % Self::ONE as u64
        );
        write!(f, "{}%", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentage_is_exact_and_rounds_down() {
        for (text, all, part, shown) in [
            ("0.1%", 12_345, 12, "0.1%"),
            ("0%", 9, 0, "0%"),
            ("100 %", 9, 9, "100%"),
            ("33.3333%", 3, 0, "33.3333%"),
        ] {
            let percent: Percent = text.parse().unwrap();
            assert_eq!(
                (percent.of(all), percent.to_string().as_str()),
                (part, shown),
                "{text}"
            );
        }
        assert!(
            ["", "%", "1", "-1%", "100.1%", "1e1%"]
                .iter()
                .all(|text| text.parse::<Percent>().is_err())
        );
    }
}
