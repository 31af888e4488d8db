//! What responses say, and how many requests may wait: `[layer]`.

use std::time::Duration;

use throttle_core::Backend;

use super::names::did_you_mean;
use super::reader::{Field, Section};
use super::values::{self, Word};
use crate::ThrottleLayer;
use crate::headers::{Dialect, ResetFormat, SdkHints};
use crate::throttle::{Jitter, Options, ResponseOptions};

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

pub(super) const DIALECTS: [Word<Dialect>; 8] = [
    ("draft-11", Dialect::Draft11),
    ("draft-07", Dialect::Draft07),
    ("draft-06", Dialect::Draft06),
    ("draft-03", Dialect::Draft03),
    ("x-ratelimit", Dialect::XRateLimit(ResetFormat::DeltaSeconds)),
    ("x-ratelimit-epoch", Dialect::XRateLimit(ResetFormat::EpochSeconds)),
    ("openai", Dialect::OpenAi),
    ("none", Dialect::None),
];

/// The most of `retry-jitter`, in percent.
pub(super) const MOST_JITTER: u64 = 100;

impl LayerSettings {
    pub(super) fn read(root: &Section<'_>) -> Self {
        let section = root.field("layer").and_then(|field| field.section("it must be a table: [layer]"));
        let Some(section) = section else { return Self::default() };
        let number = |name, least, most| section.field(name).and_then(|field| field.number(least, most));
        let settings = Self {
            headers: section.field("headers").as_ref().and_then(dialect),
            sdk_hints: section.field("sdk-hints").as_ref().and_then(values::duration).map(hints),
            retry_jitter: number("retry-jitter", 0, MOST_JITTER).and_then(|percent| u8::try_from(percent).ok()),
            max_waiting: number("max-waiting", 0, u64::MAX).and_then(|requests| usize::try_from(requests).ok()),
            report_in_response: section.field("report-in-response").as_ref().and_then(Field::boolean),
            grpc_refusals: section.field("grpc-refusals").as_ref().and_then(Field::boolean),
            unavailable_retry_after: section.field("unavailable-retry-after").as_ref().and_then(values::duration),
        };
        section.finish();
        settings
    }

    pub(super) fn apply<B: Backend>(&self, mut layer: ThrottleLayer<B>) -> ThrottleLayer<B> {
        if let Some(dialect) = self.headers {
            layer = layer.headers(dialect);
        }
        if let Some(hints) = self.sdk_hints {
            layer = layer.sdk_hints(hints);
        }
        if let Some(percent) = self.retry_jitter {
            layer = layer.retry_jitter(percent);
        }
        if let Some(requests) = self.max_waiting {
            layer = layer.max_waiting(requests);
        }
        if let Some(report) = self.report_in_response {
            layer = layer.report_in_response(report);
        }
        if let Some(wait) = self.unavailable_retry_after {
            layer = layer.unavailable_retry_after(wait);
        }
        match self.grpc_refusals {
            Some(on) => layer.grpc_refusals(on),
            None => layer,
        }
    }
}

impl LayerSettings {
    /// Changes the options of a layer with the `former` settings to these. An option that the program has set to
    /// something else stays: the program has the last word.
    pub(super) fn replace(&self, former: &Self, options: &mut Options, responses: &mut ResponseOptions) {
        let usual = Options::default();
        replace(&mut responses.dialect, &former.headers.unwrap_or_default(), self.headers.unwrap_or_default());
        replace(&mut responses.sdk_hints, &former.sdk_hints, self.sdk_hints);
        let percent = options.jitter.as_ref().map_or(0, Jitter::percent);
        let mut replaced = percent;
        replace(&mut replaced, &former.retry_jitter.unwrap_or(0), self.retry_jitter.unwrap_or(0));
        if replaced != percent {
            options.jitter = Jitter::new(replaced);
        }
        let most = |settings: &Self| settings.max_waiting.unwrap_or(usual.max_waiting);
        replace(&mut options.max_waiting, &most(former), most(self));
        let reports = |settings: &Self| settings.report_in_response.unwrap_or(false);
        replace(&mut responses.report_in_response, &reports(former), reports(self));
        let grpc = |settings: &Self| settings.grpc_refusals.unwrap_or(usual.grpc_refusals);
        replace(&mut options.grpc_refusals, &grpc(former), grpc(self));
        let wait = &mut options.unavailable_retry_after;
        replace(wait, &former.unavailable_retry_after, self.unavailable_retry_after);
    }
}

fn replace<T: PartialEq>(option: &mut T, former: &T, new: T) {
    if option == former {
        *option = new;
    }
}

fn hints(give_up_after: Duration) -> SdkHints {
    SdkHints::default().give_up_after(give_up_after)
}

fn dialect(field: &Field<'_>) -> Option<Dialect> {
    let names = || DIALECTS.iter().map(|(name, _)| *name);
    let text = field.text().unwrap_or("");
    let known = values::word(Some(text), &DIALECTS);
    if known.is_none() {
        let all: Vec<&str> = names().collect();
        field.problem(format_args!("it must be one of {}{}", all.join(", "), did_you_mean(text, names())));
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::reader::read_text;

    #[test]
    fn settings_are_read_as_they_are_written() {
        let text = "[layer]\nheaders = \"none\"\nsdk-hints = \"30s\"\nretry-jitter = 100\nmax-waiting = 0\nreport-in-response = false\ngrpc-refusals = false\nunavailable-retry-after = \"2s\"";
        let settings = LayerSettings {
            headers: Some(Dialect::None),
            sdk_hints: Some(hints(Duration::from_secs(30))),
            retry_jitter: Some(100),
            max_waiting: Some(0),
            report_in_response: Some(false),
            grpc_refusals: Some(false),
            unavailable_retry_after: Some(Duration::from_secs(2)),
        };
        assert_eq!(read_text(text, LayerSettings::read), (settings, String::new()));
        assert_eq!(read_text("", LayerSettings::read), (LayerSettings::default(), String::new()));
        for (name, dialect) in DIALECTS {
            let (settings, problems) = read_text(&format!("[layer]\nheaders = \"{name}\""), LayerSettings::read);
            assert_eq!((settings.headers, problems), (Some(dialect), String::new()));
        }
    }

    #[test]
    fn each_dialect_has_the_name_that_is_documented() {
        for (name, expected) in [
            ("draft-11", Dialect::Draft11),
            ("draft-07", Dialect::Draft07),
            ("draft-06", Dialect::Draft06),
            ("draft-03", Dialect::Draft03),
            ("x-ratelimit", Dialect::XRateLimit(ResetFormat::DeltaSeconds)),
            ("x-ratelimit-epoch", Dialect::XRateLimit(ResetFormat::EpochSeconds)),
            ("openai", Dialect::OpenAi),
            ("none", Dialect::None),
        ] {
            let (settings, _) = read_text(&format!("layer = {{ headers = \"{name}\" }}"), LayerSettings::read);
            assert_eq!(settings, LayerSettings { headers: Some(expected), ..LayerSettings::default() }, "{name}");
        }
        let text = "[layer]\nreport_in_response = true\nmax_waiting = 7\nretry_jitter = 0";
        let expected = LayerSettings {
            headers: None,
            sdk_hints: None,
            retry_jitter: Some(0),
            max_waiting: Some(7),
            report_in_response: Some(true),
            grpc_refusals: None,
            unavailable_retry_after: None,
        };
        assert_eq!(read_text(text, LayerSettings::read), (expected, String::new()));
    }

    #[test]
    fn value_of_another_type_is_a_problem_in_every_field() {
        for (value, problem) in [
            ("7", "layer is 7: it must be a table: [layer]"),
            ("{ headers = 7 }", "layer.headers is 7: it must be "),
            ("{ headers = [\"openai\"] }", "layer.headers is "),
            ("{ headers = true }", "layer.headers is true: it must be "),
            ("{ sdk-hints = 7 }", "layer.sdk-hints is 7: it must be "),
            ("{ retry-jitter = \"5\" }", "layer.retry-jitter is \"5\": it must be "),
            ("{ max-waiting = \"5\" }", "layer.max-waiting is \"5\": it must be "),
            ("{ report-in-response = \"true\" }", "layer.report-in-response is \"true\": it must be "),
            ("{ grpc-refusals = 1 }", "layer.grpc-refusals is 1: it must be "),
            ("{ unavailable-retry-after = 1 }", "layer.unavailable-retry-after is 1: it must be "),
        ] {
            let (settings, problems) = read_text(&format!("layer = {value}"), LayerSettings::read);
            assert_eq!(settings, LayerSettings::default(), "{value}");
            assert!(problems.contains(problem), "{value}: {problems}");
        }
    }

    /// Each row sets five options from one number: the jitter in percent, the longest queue, reports (on above 0), gRPC
    /// refusals (on at 0) and the wait of a 503 in seconds (none at 0). Columns: what the layer has, what the former file said, what the new file says, and the
    /// result. A value that differs from the former file's is the program's own.
    #[test]
    fn option_follows_the_file_unless_the_program_has_set_it() {
        let seconds = |percent: u8| (percent > 0).then(|| Duration::from_secs(percent.into()));
        let settings = |percent: Option<u8>| LayerSettings {
            retry_jitter: percent,
            max_waiting: percent.map(usize::from),
            report_in_response: percent.map(|percent| percent > 0),
            grpc_refusals: percent.map(|percent| percent == 0),
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
            let shown = (jitter, options.max_waiting, responses.report_in_response, options.grpc_refusals);
            assert_eq!(shown, (percent, most, reports, !reports), "{option}: {former:?}, then {new:?}");
            assert_eq!(options.unavailable_retry_after, seconds(percent), "{option}: {former:?}, then {new:?}");
        }
    }
}
