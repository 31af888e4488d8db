use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;

/// A configuration that is refused when it is built. It names the field and the value, and says
/// what to write instead.
///
/// ```
/// use throttle_core::Rate;
///
/// let error = "10/fortnight".parse::<Rate>().unwrap_err();
/// assert_eq!(error.field(), "rate");
/// assert_eq!(
///     error.to_string(),
///     "rate is \"10/fortnight\": the period must be a number of us, ms, s, m, h or d, \
///      or second, minute, hour or day, as in \"10/minute\" or \"100/15m\""
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    policy: Option<String>,
    field: &'static str,
    value: String,
    rule: Cow<'static, str>,
}

impl ConfigError {
    /// An error about `field`, which was given `value` and must follow `rule` (a phrase that
    /// completes "field is value: …").
    #[must_use]
    pub fn new(
        field: &'static str,
        value: impl fmt::Display,
        rule: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            policy: None,
            field,
            value: value.to_string(),
            rule: rule.into(),
        }
    }

    /// Names the policy that the field belongs to.
    #[must_use]
    pub fn in_policy(mut self, name: &str) -> Self {
        self.policy = Some(name.to_owned());
        self
    }

    /// The field that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// The value it was given.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The policy it belongs to, where there is one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy {policy:?}: ")?;
        }
        write!(f, "{} is {}: {}", self.field, self.value, self.rule)
    }
}

impl Error for ConfigError {}

/// Lets a function that takes settings as text take values as well, which need no parsing.
impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
