//! What `--fail-if` says: a name, a comparison and a number.

use std::fmt;
use std::str::FromStr;

/// What a plan counts, by the names that conditions have for it.
pub const COUNTED: [&str; 6] = [
    "newly-refused-requests",
    "newly-admitted-requests",
    "newly-refused-keys",
    "newly-admitted-keys",
    "refused-requests",
    "refused-keys",
];

/// Numbers in the order of [`COUNTED`].
pub type Counts = [u64; COUNTED.len()];

/// `newly-refused-keys > 0`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    counted: usize,
    comparison: &'static str,
    number: u64,
}

type Compare = fn(u64, u64) -> bool;

/// Longer ones first, so that `>=` is not read as `>`.
const COMPARISONS: [(&str, Compare); 6] = [
    (">=", |count, number| count >= number),
    ("<=", |count, number| count <= number),
    ("==", |count, number| count == number),
    ("!=", |count, number| count != number),
    (">", |count, number| count > number),
    ("<", |count, number| count < number),
];

impl Condition {
    pub fn holds(&self, counts: &Counts) -> bool {
        let compare = COMPARISONS
            .iter()
            .find(|(text, _)| *text == self.comparison);
        compare.is_some_and(|(_, compare)| compare(counts[self.counted], self.number))
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = COMPARISONS
            .iter()
            .find_map(|(comparison, _)| Some((comparison, text.split_once(comparison)?)));
        let (comparison, (name, number)) =
            found.ok_or("write a name, a comparison and a number, as in newly-refused-keys > 0")?;
        let name = name.trim();
        let counted = COUNTED.iter().position(|counted| *counted == name);
        let counted = counted.ok_or_else(|| {
            format!(
                "nothing is called {name:?}; there are {}",
                COUNTED.join(", ")
            )
        })?;
        let number = number.trim().replace('_', "");
        let number = number
            .parse()
            .map_err(|_| format!("{number:?} must be a whole number from 0"))?;
        Ok(Self {
            counted,
            comparison,
            number,
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {}",
            COUNTED[self.counted], self.comparison, self.number
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_compares_what_it_names() {
        let counts = [1, 2, 3, 4, 5, 6];
        for (text, holds) in [
            ("newly-refused-keys > 2", true),
            ("newly-refused-keys>3", false),
            (" refused-keys >= 6 ", true),
            ("refused-requests <= 4", false),
            ("newly-refused-requests == 1", true),
            ("newly-admitted-requests != 2", false),
            ("newly-admitted-keys < 1_000", true),
        ] {
            assert_eq!(
                text.parse::<Condition>().unwrap().holds(&counts),
                holds,
                "{text}"
            );
        }
        for wrong in [
            "",
            "newly-refused-keys",
            "keys > 0",
            "refused-keys > -1",
            "refused-keys > 1.5",
            "refused-keys >",
        ] {
            assert!(wrong.parse::<Condition>().is_err(), "{wrong}");
        }
    }
}
