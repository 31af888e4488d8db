use std::time::Duration;

use super::wire::Message;

/// A quota that is used up.
pub(crate) struct QuotaDetails<'a> {
    /// The policies that refused.
    pub(crate) violations: &'a [Violation<'a>],
    /// The name and the announced quota of the policy that decided.
    pub(crate) binding: Option<(&'a str, Option<u64>)>,
}

/// A policy whose quota is used up.
pub(crate) struct Violation<'a> {
    pub(crate) policy: &'a str,
    /// The announced quota. `None` if the numbers of quotas are hidden.
    pub(crate) description: Option<String>,
}

/// The `domain` of the `ErrorInfo`: who defines its reason.
pub(super) const DOMAIN: &str = "throttle";

const REASON: &str = "QUOTA_EXCEEDED";

/// Ten thousand years: the most that protobuf's durations hold.
const LONGEST: u64 = 315_576_000_000;

/// A `google.rpc.Status`.
pub(super) fn status(
    code: u8,
    message: &str,
    wait: Option<Duration>,
    quota: &QuotaDetails<'_>,
) -> Vec<u8> {
    let mut status = Message::default().number(1, code.into()).text(2, message);
    if let Some(wait) = wait {
        status = status.message(
            3,
            &any(
                "google.rpc.RetryInfo",
                &Message::default().message(1, &duration(wait)),
            ),
        );
    }
    let failure = quota
        .violations
        .iter()
        .fold(Message::default(), |failure, violation| {
            let subject = Message::default().text(1, violation.policy);
            let violation = match &violation.description {
                Some(description) => subject.text(2, description),
                None => subject,
            };
            failure.message(1, &violation)
        });
    let mut info = Message::default().text(1, REASON).text(2, DOMAIN);
    if let Some((policy, limit)) = quota.binding {
        info = info.message(3, &entry("policy", policy));
        if let Some(limit) = limit {
            info = info.message(3, &entry("limit", &limit.to_string()));
        }
    }
    let status = status.message(3, &any("google.rpc.QuotaFailure", &failure));
    status
        .message(3, &any("google.rpc.ErrorInfo", &info))
        .finish()
}

/// A `google.protobuf.Any`.
fn any(name: &str, value: &Message) -> Message {
    Message::default()
        .text(1, &format!("type.googleapis.com/{name}"))
        .message(2, value)
}

fn duration(wait: Duration) -> Message {
    let wait = wait.min(Duration::from_secs(LONGEST));
    Message::default()
        .number(1, wait.as_secs())
        .number(2, wait.subsec_nanos().into())
}

/// An entry of a map.
fn entry(key: &str, value: &str) -> Message {
    Message::default().text(1, key).text(2, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_capped_at_the_longest_protobuf_duration() {
        let quota = QuotaDetails {
            violations: &[],
            binding: None,
        };
        let status = |wait| status(8, "", Some(wait), &quota);
        let longest = Duration::from_secs(315_576_000_000);
        assert_eq!(
            [longest + Duration::from_nanos(1), Duration::MAX].map(status),
            [status(longest), status(longest)]
        );
        assert_ne!(status(longest), status(longest - Duration::from_nanos(1)));
    }
}
