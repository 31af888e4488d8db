use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use super::retry_after::RetryAfter;
use crate::json::quoted;
use crate::time::micros;

/// An error object as OpenAI's API has it: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpenAiError<'a> {
    RateLimit {
        unit: &'a str,
        wait: Option<Duration>,
    },
    Server,
    InvalidRequest,
}

impl OpenAiError<'_> {
    pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/json");

    /// `violated` are the names of the policies that refused.
    pub(crate) fn body<'a>(self, violated: impl IntoIterator<Item = &'a str>) -> Bytes {
        let (kind, code) = match self {
            Self::RateLimit { unit, .. } => (unit, r#""rate_limit_exceeded""#),
            Self::Server => ("server_error", "null"),
            Self::InvalidRequest => ("invalid_request_error", "null"),
        };
        let message = quoted(&self.message(violated));
        let kind = quoted(kind);
        Bytes::from(format!(
            r#"{{"error":{{"message":{message},"type":{kind},"param":null,"code":{code}}}}}"#
        ))
    }

    fn message<'a>(self, violated: impl IntoIterator<Item = &'a str>) -> String {
        let advice = match self {
            Self::RateLimit {
                wait: Some(wait), ..
            } => {
                let seconds = RetryAfter::from_micros(micros(wait)).seconds();
                format!("Please try again in {seconds}s.")
            }
            Self::RateLimit { wait: None, .. } => "No wait helps.".to_owned(),
            Self::Server => {
                return "The server cannot take the request now. Please try again later."
                    .to_owned();
            }
            Self::InvalidRequest => {
                return "The request lacks what its rate limit requires.".to_owned();
            }
        };
        let names: Vec<_> = violated.into_iter().collect();
        format!("Rate limit reached for {}. {advice}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(error: OpenAiError<'_>, violated: &[&str]) -> serde_json::Value {
        let body: serde_json::Value =
            serde_json::from_slice(&error.body(violated.iter().copied())).unwrap();
        assert_eq!(body.as_object().unwrap().len(), 1);
        assert_eq!(body["error"].as_object().unwrap().len(), 4);
        assert!(body["error"]["param"].is_null());
        body["error"].clone()
    }

    #[test]
    fn used_up_quota_names_its_policies_and_the_wait_rounded_up() {
        let (unit, second) = ("tokens", Duration::from_secs(1));
        for (wait, said) in [
            (Some(Duration::ZERO), "Please try again in 1s."),
            (Some(second), "Please try again in 1s."),
            (
                Some(second + Duration::from_micros(1)),
                "Please try again in 2s.",
            ),
            (Some(Duration::MAX), "Please try again in 1000000000s."),
            (None, "No wait helps."),
        ] {
            let error = error(
                OpenAiError::RateLimit { unit, wait },
                &["per \"key\"", r"a\b"],
            );
            assert_eq!(
                error["message"],
                format!(r#"Rate limit reached for per "key", a\b. {said}"#)
            );
            assert_eq!(
                (&error["type"], &error["code"]),
                (&"tokens".into(), &"rate_limit_exceeded".into())
            );
        }
    }

    #[test]
    fn unit_is_any_text() {
        for unit in ["", "to\"ken", r"a\b", r#"\""#] {
            let error = error(
                OpenAiError::RateLimit { unit, wait: None },
                &["a", "b", "c"],
            );
            assert_eq!(
                (&error["type"], &error["code"]),
                (&unit.into(), &"rate_limit_exceeded".into())
            );
            assert_eq!(
                error["message"],
                "Rate limit reached for a, b, c. No wait helps."
            );
        }
    }

    #[test]
    fn other_refusals_are_no_rate_limits() {
        for (kind, name) in [
            (OpenAiError::Server, "server_error"),
            (OpenAiError::InvalidRequest, "invalid_request_error"),
        ] {
            let error = error(kind, &[]);
            assert_eq!(error["type"], name);
            assert!(error["code"].is_null() && error["message"].as_str().unwrap().ends_with('.'));
        }
    }
}
