//! Why a handler's usage is not counted.

use std::error::Error;
use std::fmt;

/// A [`Usage`](crate::Usage) could not be changed.
///
/// ```
/// use throttle_tower::usage::UsageError;
///
/// let error = UsageError::UnknownPolicy {
///     name: "token".to_owned(),
///     known: vec!["tokens".to_owned()],
/// };
/// assert_eq!(
///     error.to_string(),
///     "no limit named \"token\" is settled later; those that are: tokens"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UsageError {
    /// No limit of that name is [settled later](crate::Limit::settled_later).
    UnknownPolicy {
        /// The unknown name.
        name: String,
        /// The names of the limits that are settled later.
        known: Vec<String>,
    },
    /// A [shaper](crate::shape::ShaperBuilder::by_unit) does not count a unit of that name.
    UnknownUnit {
        /// The unknown name.
        name: String,
        /// The units that it counts beside requests.
        known: Vec<String>,
    },
    /// The charge is final: it was settled before, a refund rule applied, or the response has
    /// ended.
    Settled {
        /// The limit's name; after a call that changes all limits, the names of all.
        name: String,
    },
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPolicy { name, known } => {
                write!(
                    f,
                    "no limit named {name:?} is settled later; those that are: {}",
                    known.join(", ")
                )
            }
            Self::UnknownUnit { name, known } if known.is_empty() => {
                write!(
                    f,
                    "no unit named {name:?} is paced, but requests only; add .by_unit(…) to the \
                        shaper's builder"
                )
            }
            Self::UnknownUnit { name, known } => {
                write!(
                    f,
                    "no unit named {name:?} is paced; those that are, beside requests: {}",
                    known.join(", ")
                )
            }
            Self::Settled { name } => write!(f, "the usage of {name:?} is final already"),
        }
    }
}

impl Error for UsageError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_limit_and_those_that_can_be_settled() {
        let known = vec!["tokens".to_owned(), "month".to_owned()];
        let unknown = UsageError::UnknownPolicy {
            name: "a\"b".to_owned(),
            known,
        };
        assert_eq!(
            unknown.to_string(),
            r#"no limit named "a\"b" is settled later; those that are: tokens, month"#
        );
        let unit = |known| UsageError::UnknownUnit {
            name: "token".to_owned(),
            known,
        };
        let text = "no unit named \"token\" is paced; those that are, beside requests: tokens";
        assert_eq!(unit(vec!["tokens".to_owned()]).to_string(), text);
        let text = "no unit named \"token\" is paced, but requests only; add .by_unit(…) to the \
            shaper's builder";
        assert_eq!(unit(Vec::new()).to_string(), text);
        let settled = UsageError::Settled {
            name: "tokens".to_owned(),
        };
        assert_eq!(
            settled.to_string(),
            r#"the usage of "tokens" is final already"#
        );
        assert_ne!(unknown, settled);
    }
}
