//! What responses say, and how many requests may wait: `[layer]`.

use std::time::Duration;

use super::file_value::FileValue;
use super::form::*;
use super::values::DURATION;
use crate::headers::{Dialect, ResetFormat, SdkHints};
use crate::throttle::{Jitter, Options, ResponseOptions};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayerSettings {
    headers: Dialect,
    sdk_hints: Option<SdkHints>,
    retry_jitter: u8,
    max_waiting: usize,
    report_in_response: bool,
    grpc_refusals: bool,
    unavailable_retry_after: Option<Duration>,
}

impl Default for LayerSettings {
    /// What a layer has of which a file says nothing.
    fn default() -> Self {
        let Options {
            max_waiting,
            grpc_refusals,
            unavailable_retry_after,
            ..
        } = Options::default();
        let ResponseOptions {
            dialect: headers,
            sdk_hints,
            report_in_response,
            ..
        } = ResponseOptions::default();
        Self {
            headers,
            sdk_hints,
            retry_jitter: 0,
            max_waiting,
            report_in_response,
            grpc_refusals,
            unavailable_retry_after,
        }
    }
}

const DIALECTS: [Word<Dialect>; 8] = [
    ("draft-11", Dialect::Draft11),
    ("draft-07", Dialect::Draft07),
    ("draft-06", Dialect::Draft06),
    ("draft-03", Dialect::Draft03),
    (
        "x-ratelimit",
        Dialect::XRateLimit(ResetFormat::DeltaSeconds),
    ),
    (
        "x-ratelimit-epoch",
        Dialect::XRateLimit(ResetFormat::EpochSeconds),
    ),
    ("openai", Dialect::OpenAi),
    ("none", Dialect::None),
];

pub(super) const LAYER: ValueForm = Table(
    "layer",
    "Headers, and bounds of the layer.",
    &[
        One(
            "headers",
            "Which headers tell clients of the limits.",
            Usual("draft-11"),
            Words(
                || words(&DIALECTS),
                "it must be one of draft-11, draft-07, draft-06, draft-03, x-ratelimit, \
                     x-ratelimit-epoch, openai, none",
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
        let usual = Self::default();
        let percent = layer.at("retry-jitter").number();
        let most = layer.at("max-waiting").number();
        let hints = layer.at("sdk-hints").duration();
        let is_on = |name: &str, usual: bool| layer.at(name).flag().unwrap_or(usual);
        Self {
            headers: layer.at("headers").word(&DIALECTS).unwrap_or(usual.headers),
            sdk_hints: hints.map(|longest| SdkHints::default().give_up_after(longest)),
            retry_jitter: percent.map_or(usual.retry_jitter, |percent| percent as u8),
            max_waiting: most.map_or(usual.max_waiting, |most| most as usize),
            report_in_response: is_on("report-in-response", usual.report_in_response),
            grpc_refusals: is_on("grpc-refusals", usual.grpc_refusals),
            unavailable_retry_after: layer.at("unavailable-retry-after").duration(),
        }
    }

    /// Changes the options of a layer with the `former` settings to these. An option that the
    /// program has set to something else stays: the program has the last word.
    pub(super) fn replace(
        &self,
        former: &Self,
        options: &mut Options,
        responses: &mut ResponseOptions,
    ) {
        replace(&mut responses.dialect, former.headers, self.headers);
        replace(&mut responses.sdk_hints, former.sdk_hints, self.sdk_hints);
        replace(
            &mut responses.report_in_response,
            former.report_in_response,
            self.report_in_response,
        );
        replace(
            &mut options.max_waiting,
            former.max_waiting,
            self.max_waiting,
        );
        replace(
            &mut options.grpc_refusals,
            former.grpc_refusals,
            self.grpc_refusals,
        );
        replace(
            &mut options.unavailable_retry_after,
            former.unavailable_retry_after,
            self.unavailable_retry_after,
        );
        let percent = options.jitter.as_ref().map_or(0, Jitter::percent);
        if percent == former.retry_jitter && percent != self.retry_jitter {
            options.jitter = Jitter::new(self.retry_jitter);
        }
    }
}

fn replace<T: PartialEq + Copy>(option: &mut T, former: T, new: T) {
    if *option == former {
        *option = new;
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
            headers: Dialect::None,
            sdk_hints: Some(SdkHints::default().give_up_after(Duration::from_secs(30))),
            retry_jitter: 100,
            max_waiting: 0,
            report_in_response: false,
            grpc_refusals: false,
            unavailable_retry_after: Some(Duration::from_secs(2)),
        };
        assert_eq!(read(text), Ok(settings));
        assert_eq!(read(""), Ok(LayerSettings::default()));
        for (name, dialect) in DIALECTS {
            let settings = read(&format!("[layer]\nheaders = \"{name}\""));
            assert_eq!(settings.map(|settings| settings.headers), Ok(dialect));
        }
    }

    #[test]
    fn each_dialect_has_the_name_that_is_documented() {
        for (name, expected) in [
            ("draft-11", Dialect::Draft11),
            ("draft-07", Dialect::Draft07),
            ("draft-06", Dialect::Draft06),
            ("draft-03", Dialect::Draft03),
            (
                "x-ratelimit",
                Dialect::XRateLimit(ResetFormat::DeltaSeconds),
            ),
            (
                "x-ratelimit-epoch",
                Dialect::XRateLimit(ResetFormat::EpochSeconds),
            ),
            ("openai", Dialect::OpenAi),
            ("none", Dialect::None),
        ] {
            let settings = read(&format!("layer = {{ headers = \"{name}\" }}"));
            let expected = LayerSettings {
                headers: expected,
                ..LayerSettings::default()
            };
            assert_eq!(settings, Ok(expected), "{name}");
        }
        let text = "[layer]\nreport_in_response = true\nmax_waiting = 7\nretry_jitter = 0";
        let expected = LayerSettings {
            max_waiting: 7,
            report_in_response: true,
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

    /// Each row sets five options from one number: the jitter in percent, the longest queue,
    /// reports (on above 0), gRPC refusals (on at 0) and the wait of a 503 in seconds (none at 0).
    /// Columns: what the layer has, what the former file said, what the new file says, and the
    /// result. A value that differs from the former file's is the program's own.
    #[test]
    fn option_follows_the_file_unless_the_program_has_set_it() {
        let seconds = |percent: u8| (percent > 0).then(|| Duration::from_secs(percent.into()));
        let settings = |percent: Option<u8>| LayerSettings {
            retry_jitter: percent.unwrap_or(0),
            max_waiting: percent.map_or(10_000, usize::from),
            report_in_response: percent.is_some_and(|percent| percent > 0),
            grpc_refusals: percent.is_none_or(|percent| percent == 0),
            unavailable_retry_after: percent.and_then(seconds),
            ..LayerSettings::default()
        };
        for (option, former, new, percent, most, reports) in [
            (20, Some(20), Some(40), 40, 40, true),
            (20, Some(20), None, 0, 10_000, false),
            (20, Some(20), Some(0), 0, 0, false),
            (50, Some(20), Some(40), 50, 50, true),
            (1, Some(1), Some(2), 2, 2, true),
            (0, Some(20), Some(40), 0, 0, false),
        ] {
            let (mut options, mut responses) = (Options::default(), ResponseOptions::default());
            options.jitter = Jitter::new(option);
            options.max_waiting = usize::from(option);
            options.grpc_refusals = option == 0;
            options.unavailable_retry_after = seconds(option);
            responses.report_in_response = option > 0;
            settings(new).replace(&settings(former), &mut options, &mut responses);
            let jitter = options.jitter.as_ref().map_or(0, Jitter::percent);
            let shown = (
                jitter,
                options.max_waiting,
                responses.report_in_response,
                options.grpc_refusals,
            );
            assert_eq!(
                shown,
                (percent, most, reports, !reports),
                "{option}: {former:?}, then {new:?}"
            );
            assert_eq!(
                options.unavailable_retry_after,
                seconds(percent),
                "{option}: {former:?}, then {new:?}"
            );
        }
    }
}
