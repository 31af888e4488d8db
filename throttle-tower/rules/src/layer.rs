//! What responses say, and how many requests may wait: `[layer]`.

use super::file_value::FileValue;
use super::form::*;
use super::values::DURATION;
use throttle_tower::headers::{Dialect, SdkHints};
use throttle_tower::{ReportIn, ThrottleBuilder, ThrottleLayer};

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

/// A layer without limits, with what the section sets.
pub(super) fn read(section: Option<&FileValue<'_>>) -> ThrottleBuilder {
    let layer = ThrottleLayer::builder(());
    let Some(section) = section else {
        return layer;
    };
    let field = |name| section.at(name);
    let dialect = field("headers").text().and_then(|word| word.parse().ok());
    let layer = with(layer, dialect, ThrottleBuilder::headers);
    let layer = with(layer, field("sdk-hints").duration(), |layer, longest| {
        layer.sdk_hints(SdkHints::default().give_up_after(longest))
    });
    let layer = with(layer, field("retry-jitter").number(), |layer, percent| {
        layer.retry_jitter(percent as u8)
    });
    let layer = with(layer, field("max-waiting").number(), |layer, most| {
        layer.max_waiting(most as usize)
    });
    let report = field("report-in-response").flag();
    let layer = with(layer, report, |layer, both| {
        layer.report_in(if both {
            ReportIn::Both
        } else {
            ReportIn::Request
        })
    });
    let grpc = field("grpc-refusals").flag();
    let layer = with(layer, grpc, ThrottleBuilder::grpc_refusals);
    let wait = field("unavailable-retry-after").duration();
    with(layer, wait, ThrottleBuilder::unavailable_retry_after)
}

fn with<T>(
    layer: ThrottleBuilder,
    value: Option<T>,
    set: impl FnOnce(ThrottleBuilder, T) -> ThrottleBuilder,
) -> ThrottleBuilder {
    match value {
        Some(value) => set(layer, value),
        None => layer,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use http::{Request, Response};
    use throttle_core::{ManualClock, MemoryBackend};
    use tower::{Layer, Service, service_fn};

    use super::*;
    use crate::{Registry, Rules};
    use throttle_tower::LimitReport;

    const LIMITS: &str = r#"
        [[limit]]
        name = "rate"
        by = "constant"
        fixed-window = { rate = "1/h" }
        match = { paths = ["/rate"] }
        [[limit]]
        name = "queue"
        by = "constant"
        gcra = { rate = "1/m", burst = 1 }
        match = { paths = ["/queue"] }
        wait-up-to = "1h"
        [[concurrency]]
        most = 1
        match = { paths = ["/hold"] }
    "#;

    type Memory = MemoryBackend<ManualClock>;

    fn rules(text: &str) -> Rules {
        Rules::from_str("f", text, Registry::new()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What each of some requests gets at once, with the settings of a file and of a program.
    fn answers(
        section: &str,
        program: impl FnOnce(ThrottleBuilder<Memory>) -> ThrottleBuilder<Memory>,
    ) -> Vec<String> {
        let rules = rules(&format!("version = 1\n{section}\n{LIMITS}"));
        let clock = ManualClock::default();
        clock.set(throttle_core::Timestamp::from_micros(1_600_000_000_000_000));
        let store = MemoryBackend::builder().clock(clock).build();
        let program = program(ThrottleLayer::builder(()).backend(store));
        let (layer, _) = rules.layer_with(program).unwrap();
        let service = layer.layer(service_fn(async |request: Request<()>| {
            if request.uri().path() == "/hold" {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(()))
        }));
        let mut waiting = Vec::new();
        let mut answers = Vec::new();
        for (path, content_type) in [
            ("/rate", "text/plain"),
            ("/rate", "text/plain"),
            ("/rate", "application/grpc"),
            ("/queue", "text/plain"),
            ("/queue", "text/plain"),
            ("/hold", "text/plain"),
            ("/hold", "text/plain"),
        ] {
            let request = Request::post(path).header("content-type", content_type);
            let mut response = Box::pin(service.clone().call(request.body(()).unwrap()));
            match response
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                Poll::Ready(response) => {
                    let (head, _) = response.unwrap().into_parts();
                    let report = head.extensions.get::<LimitReport>().is_some();
                    answers.push(format!("{} {report} {:?}", head.status, head.headers));
                }
                Poll::Pending => {
                    waiting.push(response);
                    answers.push("waits".to_owned());
                }
            }
        }
        answers
    }

    #[tokio::test]
    async fn settings_of_a_file_act_as_those_of_a_program() {
        type Set = fn(ThrottleBuilder<Memory>) -> ThrottleBuilder<Memory>;
        let settings: [(&str, Set); 6] = [
            ("headers = \"none\"", |layer| layer.headers(Dialect::None)),
            ("sdk-hints = \"30s\"", |layer| {
                layer.sdk_hints(SdkHints::default().give_up_after(Duration::from_secs(30)))
            }),
            ("max-waiting = 0", |layer| layer.max_waiting(0)),
            ("report-in-response = true", |layer| {
                layer.report_in(ReportIn::Both)
            }),
            ("grpc-refusals = false", |layer| layer.grpc_refusals(false)),
            ("unavailable-retry-after = \"2s\"", |layer| {
                layer.unavailable_retry_after(Duration::from_secs(2))
            }),
        ];
        let default = answers("", |layer| layer);
        for (setting, set) in settings {
            let of_program = answers("", set);
            assert_ne!(of_program, default, "{setting} acts");
            assert_eq!(
                answers(&format!("[layer]\n{setting}"), |layer| layer),
                of_program
            );
            let (name, value) = setting.split_once(' ').unwrap();
            let underscores = format!("[layer]\n{} {value}", name.replace('-', "_"));
            assert_eq!(answers(&underscores, |layer| layer), of_program);
        }
        assert_eq!(answers("[layer]", |layer| layer), default);
    }

    #[tokio::test]
    async fn jitter_of_a_file_lengthens_waits_by_at_most_its_percentage() {
        // Each layer adds another part for the one key. That all add less than a second of an hour
        // does not happen.
        let waits: Vec<u64> = (0..9)
            .map(|_| {
                let refused = answers("[layer]\nretry-jitter = 100", |layer| layer).swap_remove(1);
                let (_, wait) = refused.split_once("\"retry-after\": \"").unwrap();
                wait.split('"').next().unwrap().parse().unwrap()
            })
            .collect();
        let least = 2_000; // of the window that has begun
        assert!(
            waits
                .iter()
                .all(|wait| (least..=2 * least + 1).contains(wait)),
            "{waits:?}"
        );
        assert!(waits.iter().any(|wait| *wait > least), "{waits:?}");
    }

    #[tokio::test]
    async fn each_dialect_is_named_by_its_word() {
        for dialect in Dialect::ALL {
            let file = answers(&format!("[layer]\nheaders = \"{dialect}\""), |layer| layer);
            assert_eq!(
                file,
                answers("", |layer| layer.headers(*dialect)),
                "{dialect}"
            );
        }
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
            let text = format!("version = 1\nlimit = []\nlayer = {value}");
            let problems = Rules::from_str("f", &text, Registry::new())
                .unwrap_err()
                .to_string();
            assert!(problems.contains(problem), "{value}: {problems}");
        }
    }
}
