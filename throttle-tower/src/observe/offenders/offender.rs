use std::fmt;

use throttle_core::PolicyName;

/// A key that was refused often: see [`Offenders`](crate::Offenders).
///
/// `Display` shows it as `limit#digest`, for example `per-ip#3f9c01ab52d7e680`, and as
/// `limit#missing` if it stands for the requests without a key. It never contains a key, except
/// for the text in [`shown`](Self::shown).
///
/// ```
/// use throttle_tower::{Offender, Offenders};
///
/// fn lines(offenders: &[Offender]) -> Vec<String> {
///     let line = |offender: &Offender| format!("{offender}: {}", offender.refused);
///     offenders.iter().map(line).collect()
/// }
/// assert!(lines(&Offenders::new().list(10)).is_empty(), "there was no request");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offender {
    /// The policy that refused it.
    pub policy: PolicyName,
    /// The key's digest; `None` for the key that requests without one share.
    pub digest: Option<u64>,
    /// How often it was refused in the last one to two minutes. An estimate that is never too high.
    /// It is exact unless thousands of other keys are refused.
    pub refused: u64,
    /// The key as the function of [`Offenders::showing`](crate::Offenders::showing) returns it.
    /// Always `None` without that function.
    pub shown: Option<String>,
}

impl fmt::Display for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.digest {
            Some(digest) => write!(f, "{}#{digest:016x}", self.policy.as_str()),
            None => write!(f, "{}#missing", self.policy.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_shown_by_sixteen_digits() {
        let shown = |digest| {
            let policy = PolicyName::new("per-ip").unwrap();
            Offender {
                policy,
                digest,
                refused: 1,
                shown: None,
            }
            .to_string()
        };
        assert_eq!(shown(Some(0x3f)), "per-ip#000000000000003f");
        assert_eq!(shown(Some(u64::MAX)), "per-ip#ffffffffffffffff");
        assert_eq!(shown(None), "per-ip#missing");
    }
}
