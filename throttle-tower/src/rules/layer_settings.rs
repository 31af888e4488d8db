//! What responses say, and how many requests may wait: `[layer]`.

use std::time::Duration;

use super::names::did_you_mean;
use super::outline::by_default;
use super::reader::{Field, Section, Word};
use super::values;
use crate::headers::{Dialect, SdkHints};
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

fn dialects() -> Vec<Word<Dialect>> {
    let word = |dialect: &Dialect| (dialect.as_str(), *dialect);
    Dialect::ALL.iter().map(word).collect()
}

impl LayerSettings {
    pub(super) fn read(root: &Section<'_>) -> Self {
        let definition = ("layer", "Headers, and bounds of the layer.");
        let section = root
            .field("layer", "")
            .and_then(|field| field.section(definition, "it must be a table: [layer]"));
        let Some(section) = section else {
            return Self::default();
        };
        let usual = Self::default();
        let flag = |name, usual, about| {
            section
                .field(name, by_default(usual, about))
                .as_ref()
                .and_then(Field::boolean)
                .unwrap_or(usual)
        };
        let duration = |name, about: &'static str| {
            section
                .field(name, about)
                .as_ref()
                .and_then(values::duration)
        };
        let headers = section.field(
            "headers",
            by_default("draft-11", "Which headers tell clients of the limits."),
        );
        let jitter =
            "By how many percent Retry-After is lengthened at most, so that not all retry at once.";
        let jitter = section
            .field("retry-jitter", by_default(0, jitter))
            .and_then(|field| field.number(0, 100));
        let waiting = "How many requests may wait at once for limits with wait-up-to.";
        let waiting = section.field("max-waiting", by_default(usual.max_waiting, waiting));
        let waiting = waiting.and_then(|field| field.number(0, u64::MAX));
        let hints = "Refusals tell SDKs in milliseconds when to retry, and not to retry if the \
            wait is longer than this.";
        let report = "Whether admitted responses carry a report for outer layers.";
        let grpc = "Whether refused gRPC requests get the response that gRPC clients read.";
        let unavailable = "The Retry-After of a 503. Without it a 503 has none.";
        let settings = Self {
            headers: headers.as_ref().and_then(dialect).unwrap_or(usual.headers),
            sdk_hints: duration("sdk-hints", hints)
                .map(|longest| SdkHints::default().give_up_after(longest)),
            retry_jitter: jitter
                .and_then(|percent| u8::try_from(percent).ok())
                .unwrap_or(usual.retry_jitter),
            max_waiting: waiting
                .and_then(|most| usize::try_from(most).ok())
                .unwrap_or(usual.max_waiting),
            report_in_response: flag("report-in-response", usual.report_in_response, report),
            grpc_refusals: flag("grpc-refusals", usual.grpc_refusals, grpc),
            unavailable_retry_after: duration("unavailable-retry-after", unavailable),
        };
        section.finish();
        settings
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

fn dialect(field: &Field<'_>) -> Option<Dialect> {
    let dialects = dialects();
    let names: Vec<_> = dialects.iter().map(|(name, _)| *name).collect();
    let near = did_you_mean(field.text().unwrap_or(""), names.iter().copied());
    field.expect_word(
        &dialects,
        format_args!("it must be one of {}{near}", names.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::ResetFormat;
    use crate::rules::reader::read_text;

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
        assert_eq!(
            read_text(text, LayerSettings::read),
            (settings, String::new())
        );
        assert_eq!(
            read_text("", LayerSettings::read),
            (LayerSettings::default(), String::new())
        );
        for (name, dialect) in dialects() {
            let (settings, problems) = read_text(
                &format!("[layer]\nheaders = \"{name}\""),
                LayerSettings::read,
            );
            assert_eq!((settings.headers, problems), (dialect, String::new()));
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
            let (settings, _) = read_text(
                &format!("layer = {{ headers = \"{name}\" }}"),
                LayerSettings::read,
            );
            assert_eq!(
                settings,
                LayerSettings {
                    headers: expected,
                    ..LayerSettings::default()
                },
                "{name}"
            );
        }
        let text = "[layer]\nreport_in_response = true\nmax_waiting = 7\nretry_jitter = 0";
        let expected = LayerSettings {
            max_waiting: 7,
            report_in_response: true,
            ..LayerSettings::default()
        };
        assert_eq!(
            read_text(text, LayerSettings::read),
            (expected, String::new())
        );
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
            let (settings, problems) = read_text(&format!("layer = {value}"), LayerSettings::read);
            assert_eq!(settings, LayerSettings::default(), "{value}");
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
