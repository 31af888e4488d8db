use std::fmt;
use std::sync::Arc;

use crate::algorithm::{Algorithm, IntoAlgorithm};
use crate::error::ConfigError;

/// The public name of a limit: what headers, problem documents and metrics call it.
///
/// 1 to 64 printable ASCII characters (0x20 to 0x7E), so that it fits a structured-field string.
/// Clients see it: choose a public alias, not an internal identifier.
///
/// ```
/// use throttle_core::PolicyName;
///
/// assert_eq!(PolicyName::new("per-ip")?.as_str(), "per-ip");
/// assert!(PolicyName::new("größe").is_err());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName(Arc<str>);

impl PolicyName {
    /// Most characters a name may have.
    pub const MAX_LEN: usize = 64;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than 64 characters, or holds anything but printable ASCII.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        printable("policy name", name, Self::MAX_LEN)?;
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

pub(crate) fn printable(field: &'static str, text: &str, most: usize) -> Result<(), ConfigError> {
    if (1..=most).contains(&text.len()) && text.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
        return Ok(());
    }
    let rule = |remedy| {
        format!(
            "it must be 1 to {most} printable ASCII characters, because clients read it in \
                headers; {remedy}"
        )
    };
    if text.len() > most {
        let (length, start) = (
            text.chars().count(),
            text.chars().take(SHOWN).collect::<String>(),
        );
        let value = format_args!("{start:?} and so on, {length} characters long");
        return Err(ConfigError::new(field, value, rule("shorten it")));
    }
    let remedy = if text.is_empty() {
        "give it one"
    } else {
        "write it with ASCII letters, digits and punctuation"
    };
    Err(ConfigError::new(
        field,
        format_args!("{text:?}"),
        rule(remedy),
    ))
}

/// Characters that an error shows of a text that is too long.
const SHOWN: usize = 24;

impl fmt::Debug for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A public name and a validated algorithm.
///
/// ```
/// use throttle_core::{Gcra, Policy, Rate};
///
/// let policy = Policy::new("per-ip", Gcra::new(Rate::per_second(10)).burst(20))?;
/// assert_eq!(policy.name(), "per-ip");
///
/// let error = Policy::new("per-ip", Gcra::new(Rate::per_second(10)).burst(0)).unwrap_err();
/// assert_eq!((error.policy(), error.field(), error.value()), (Some("per-ip"), "burst", "0"));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: PolicyName,
    pub(crate) algorithm: Algorithm,
    unit: Option<Arc<str>>,
    is_audited: bool,
    pub(crate) tiers: Option<Arc<[Tier]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tier {
    pub(crate) name: Arc<str>,
    /// The policy in this tier: the same name and unit, without tiers.
    pub(crate) policy: Policy,
}

impl Policy {
    /// Names an algorithm.
    ///
    /// # Errors
    ///
    /// If the name is not 1 to 64 printable ASCII characters, or the algorithm's configuration is
    /// out of range.
    pub fn new(name: &str, algorithm: impl IntoAlgorithm) -> Result<Self, ConfigError> {
        let algorithm = algorithm
            .into_algorithm()
            .map_err(|error| error.in_policy(name));
        Ok(Self {
            name: PolicyName::new(name)?,
            algorithm: algorithm?,
            unit: None,
            is_audited: false,
            tiers: None,
        })
    }

    /// Sets what the policy counts, as headers name it: `content-bytes`, `tokens`. Defaults to
    /// requests.
    ///
    /// # Errors
    ///
    /// If it is not 1 to 64 printable ASCII characters.
    pub fn with_unit(mut self, unit: &str) -> Result<Self, ConfigError> {
        printable("unit", unit, PolicyName::MAX_LEN)
            .map_err(|error| error.in_policy(self.name()))?;
        let unit: Arc<str> = unit.into();
        self.change_each(|policy| policy.unit = Some(Arc::clone(&unit)));
        Ok(self)
    }

    /// Makes the policy an audited one: it is decided and charged with the others of its set, and
    /// refuses and delays nothing. Its [status](crate::Status::is_audited) says what it would do.
    /// Defaults to a policy that is enforced.
    ///
    /// The policy is charged if the request is admitted and the policy would have admitted it. So
    /// its state is what it would be if the policy was enforced, until it would refuse a request
    /// for the first time.
    ///
    /// What the [decision](crate::Decision) says as a whole is about the other policies. If a
    /// request has no other policy, the decision is that of a request without limits. A policy
    /// inside an `any` cannot be audited.
    ///
    /// ```
    /// use throttle_core::{Gcra, Limiter, Policy, Rate};
    ///
    /// let limiter = Limiter::in_memory(Policy::new("new", Gcra::new(Rate::per_day(1)))?.audit())?;
    /// assert!(!limiter.check("ada", 1).statuses()[0].refuses());
    /// let decision = limiter.check("ada", 1);
    /// assert!(decision.is_admitted() && decision.statuses()[0].refuses());
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn audit(mut self) -> Self {
        self.change_each(|policy| policy.is_audited = true);
        self
    }

    /// Whether the policy is [audited](Self::audit).
    #[must_use]
    pub const fn is_audited(&self) -> bool {
        self.is_audited
    }

    /// The public name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The public name as a checked value, cheap to clone.
    #[must_use]
    pub const fn policy_name(&self) -> &PolicyName {
        &self.name
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Changes the algorithm, and that of each tier.
    pub(crate) fn change_algorithms(&mut self, change: impl Fn(&Algorithm) -> Algorithm) {
        self.change_each(|policy| policy.algorithm = change(&policy.algorithm));
    }

    /// Changes the policy, and its copy in each tier.
    fn change_each(&mut self, change: impl Fn(&mut Self)) {
        change(self);
        if let Some(tiers) = &self.tiers {
            let mut tiers = tiers.to_vec();
            tiers.iter_mut().for_each(|tier| change(&mut tier.policy));
            self.tiers = Some(tiers.into());
        }
    }

    /// What the policy counts; `None` for requests.
    #[must_use]
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Gcra;
    use crate::rate::Rate;

    fn policy(name: &str) -> Policy {
        Policy::new(name, Gcra::new(Rate::per_minute(5))).expect("a policy")
    }

    #[test]
    fn an_error_of_a_name_says_what_to_do_about_it() {
        let rule =
            "it must be 1 to 64 printable ASCII characters, because clients read it in headers";
        let error = |name: &str| PolicyName::new(name).expect_err("wrong").to_string();
        assert_eq!(
            error(""),
            format!("policy name is \"\": {rule}; give it one")
        );
        let remedy = "write it with ASCII letters, digits and punctuation";
        assert_eq!(
            error("größe"),
            format!("policy name is \"größe\": {rule}; {remedy}")
        );
        // Its bytes are counted for the bound, because the text is no ASCII, and its characters are
        // shown.
        let shown = format!("\"{}\" and so on, 33 characters long", "é".repeat(24));
        assert_eq!(
            error(&"é".repeat(33)),
            format!("policy name is {shown}: {rule}; shorten it")
        );
        assert_eq!(
            error(&"é".repeat(32)),
            format!("policy name is \"{}\": {rule}; {remedy}", "é".repeat(32))
        );
    }

    #[test]
    fn an_error_of_the_name_comes_before_one_of_the_algorithm() {
        let field = |name: &str, burst| {
            let error =
                Policy::new(name, Gcra::new(Rate::per_minute(5)).burst(burst)).expect_err("wrong");
            (error.policy().map(str::to_owned), error.field())
        };
        assert_eq!(field("p", 0), (Some("p".to_owned()), "burst"));
        assert_eq!(
            (field("", 5), field("", 0)),
            ((None, "policy name"), (None, "policy name"))
        );
    }

    #[test]
    fn a_name_is_written_as_it_is_and_sorted_as_a_text() {
        let [a, b] = ["per-\"ip\"", "per-user"].map(|name| PolicyName::new(name).expect("a name"));
        assert_eq!(
            (a.to_string(), format!("{a:?}")),
            ("per-\"ip\"".to_owned(), r#""per-\"ip\"""#.to_owned())
        );
        assert!(a < b && a == a.clone() && a != b);
        assert_eq!(
            (policy("p").name(), policy("p").policy_name().as_str()),
            ("p", "p")
        );
    }
}
