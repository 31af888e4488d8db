//! What responses say, and how many requests may wait: `[layer]`.

use std::time::Duration;

use super::file_value::FileValue;
use super::form::*;
use super::values::DURATION;
use crate::headers::{Dialect, SdkHints};
use crate::{ThrottleBuilder, ThrottleLayer};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerSettings {
    headers: Option<Dialect>,
    sdk_hints: Option<SdkHints>,
    retry_jitter: Option<u8>,
    max_waiting: Option<usize>,
    report_in_response: Option<bool>,
    grpc_refusals: Option<bool>,
    unavailable_retry_after: Option<Duration>,
}

pub(super) const LAYER: ValueForm = Table(
    "layer",
    "Headers, and bounds of the layer.",
    &[
        One(
            "headers",
            "Which headers tell clients of the limits.",
            Usual("draft-11"),
            Words(
                || {
                    Dialect::ALL
                        .iter()
                        .map(|dialect| dialect.as_str())
                        .collect()
                },
                "",
            ),
        ),
        One(
            "sdk-hints",
            "Refusals tell SDKs in milliseconds when to retry, and not to retry if the wait \
                 is longer than this.",
            Optional,
            DURATION,
        ),
        One(
            "retry-jitter",
            "By how many percent Retry-After is lengthened at most, so that not all retry at \
                 once.",
            Usual("0"),
            Number(0, 100),
        ),
        One(
            "max-waiting",
            "How many requests may wait at once for limits with wait-up-to.",
            Usual("10000"),
            Number(0, u64::MAX),
        ),
        One(
            "report-in-response",
            "Whether admitted responses carry a report for outer layers.",
            Usual("false"),
            Flag,
        ),
        One(
            "grpc-refusals",
            "Whether refused gRPC requests get the response that gRPC clients read.",
            Usual("true"),
            Flag,
        ),
        One(
            "unavailable-retry-after",
            "The Retry-After of a 503. Without it a 503 has none.",
            Optional,
            DURATION,
        ),
    ],
    "it must be a table: [layer]",
);

impl LayerSettings {
    pub(super) fn read(layer: &FileValue<'_>) -> Self {
        let duration = |name: &str| layer.at(name).duration();
        let headers = layer.at("headers").text();
        Self {
            headers: headers.and_then(|word| word.parse().ok()),
            sdk_hints: duration("sdk-hints")
                .map(|longest| SdkHints::default().give_up_after(longest)),
            retry_jitter: layer
                .at("retry-jitter")
                .number()
                .map(|percent| percent as u8),
            max_waiting: layer.at("max-waiting").number().map(|most| most as usize),
            report_in_response: layer.at("report-in-response").flag(),
            grpc_refusals: layer.at("grpc-refusals").flag(),
            unavailable_retry_after: duration("unavailable-retry-after"),
        }
    }

    /// A layer with these settings and no limit.
    pub(super) fn builder(&self) -> ThrottleBuilder {
        let mut builder = ThrottleLayer::builder(());
        if let Some(dialect) = self.headers {
            builder = builder.headers(dialect);
        }
        if let Some(hints) = self.sdk_hints {
            builder = builder.sdk_hints(hints);
        }
        if let Some(percent) = self.retry_jitter {
            builder = builder.retry_jitter(percent);
        }
        if let Some(most) = self.max_waiting {
            builder = builder.max_waiting(most);
        }
        if let Some(report) = self.report_in_response {
            builder = builder.report_in_response(report);
        }
        if let Some(on) = self.grpc_refusals {
            builder = builder.grpc_refusals(on);
        }
        if let Some(wait) = self.unavailable_retry_after {
            builder = builder.unavailable_retry_after(wait);
        }
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Registry, Rules};

    fn read(text: &str) -> Result<LayerSettings, String> {
        let text = format!("version = 1\nlimit = []\n{text}");
        let rules = Rules::from_str("f", &text, Registry::new());
        rules
            .map(|rules| rules.document.settings)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_read_as_they_are_written() {
        let text = "[layer]\nheaders = \"none\"\nsdk-hints = \"30s\"\nretry-jitter = \
            100\nmax-waiting = 0\nreport-in-response = false\ngrpc-refusals = \
            false\nunavailable-retry-after = \"2s\"";
        let settings = LayerSettings {
            headers: Some(Dialect::None),
            sdk_hints: Some(SdkHints::default().give_up_after(Duration::from_secs(30))),
            retry_jitter: Some(100),
            max_waiting: Some(0),
            report_in_response: Some(false),
            grpc_refusals: Some(false),
            unavailable_retry_after: Some(Duration::from_secs(2)),
        };
        assert_eq!(read(text), Ok(settings));
        assert_eq!(read(""), Ok(LayerSettings::default()));
        for dialect in Dialect::ALL {
            let settings = read(&format!("[layer]\nheaders = \"{dialect}\""));
            assert_eq!(
                settings.map(|settings| settings.headers),
                Ok(Some(*dialect))
            );
        }
    }

    #[test]
    fn names_of_settings_may_be_written_with_underscores() {
        let text = "[layer]\nreport_in_response = true\nmax_waiting = 7\nretry_jitter = 0";
        let expected = LayerSettings {
            max_waiting: Some(7),
            report_in_response: Some(true),
            retry_jitter: Some(0),
            ..LayerSettings::default()
        };
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn value_of_another_type_is_a_problem_in_every_field() {
        for (value, problem) in [
            ("7", "layer is 7: it must be a table: [layer]"),
            ("{ headers = 7 }", "layer.headers is 7: it must be "),
            ("{ headers = [\"openai\"] }", "layer.headers is "),
            ("{ headers = true }", "layer.headers is true: it must be "),
            ("{ sdk-hints = 7 }", "layer.sdk-hints is 7: it must be "),
            (
                "{ retry-jitter = \"5\" }",
                "layer.retry-jitter is \"5\": it must be ",
            ),
            (
                "{ max-waiting = \"5\" }",
                "layer.max-waiting is \"5\": it must be ",
            ),
            (
                "{ report-in-response = \"true\" }",
                "layer.report-in-response is \"true\": it must be ",
            ),
            (
                "{ grpc-refusals = 1 }",
                "layer.grpc-refusals is 1: it must be ",
            ),
            (
                "{ unavailable-retry-after = 1 }",
                "layer.unavailable-retry-after is 1: it must be ",
            ),
        ] {
            let problems = read(&format!("layer = {value}")).unwrap_err();
            assert!(problems.contains(problem), "{value}: {problems}");
        }
    }
}
