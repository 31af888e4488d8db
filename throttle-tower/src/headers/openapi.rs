//! What OpenAPI documents say about a refusal: its headers and its problem document. All of it is
//! valid in OpenAPI 3.0, too, which has no `const`.

use super::dialect::{Dialect, ResetFormat};
use super::sdk_hints::SdkHints;
use crate::json::{object, quoted};

/// The Components Object of a layer. The body of a refusal is described if it is a problem
/// document.
pub(crate) fn components(dialect: Dialect, hints: Option<SdkHints>, has_problem: bool) -> String {
    let names = dialect
        .exposed_names()
        .iter()
        .chain(hints.iter().flat_map(|_| SdkHints::names()));
    let names: Vec<&str> = names.map(|name| name.as_str()).collect();
    let described: Vec<_> = names
        .iter()
        .map(|name| (*name, header(dialect, name)))
        .collect();
    let of_refusal: Vec<_> = names
        .iter()
        .map(|name| (*name, reference("headers", name)))
        .collect();
    let mut refusal = vec![
        ("description", quoted("A quota is used up.")),
        ("headers", object(&of_refusal)),
    ];
    let mut components = vec![("headers", object(&described))];
    if has_problem {
        let body = object(&[("schema", reference("schemas", "QuotaExceeded"))]);
        refusal.push(("content", object(&[("application/problem+json", body)])));
        components.push(("schemas", object(&[("QuotaExceeded", PROBLEM.to_owned())])));
    }
    components.push((
        "responses",
        object(&[("TooManyRequests", object(&refusal))]),
    ));
    object(&components)
}

/// The body of [`Problem::QuotaExceeded`](super::Problem::QuotaExceeded).
const PROBLEM: &str = concat!(
    r#"{"type":"object","required":["type","title","status","violated-policies"],"properties":{"#,
    r#""type":{"enum":["https://iana.org/assignments/http-problem-types#quota-exceeded"]},"#,
    r#""title":{"type":"string"},"status":{"enum":[429]},"#,
    r#""violated-policies":{"type":"array","items":{"type":"string"}}}}"#
);

fn reference(kind: &str, name: &str) -> String {
    object(&[("$ref", quoted(&format!("#/components/{kind}/{name}")))])
}

fn header(dialect: Dialect, name: &str) -> String {
    let (kind, text) = match (dialect, name) {
        (_, "retry-after") => (
            "integer",
            "Seconds until the request is admitted; on refusals only, if a wait helps.",
        ),
        (_, "retry-after-ms") => ("integer", "`retry-after` in milliseconds."),
        (_, "x-should-retry") => (
            "string",
            "`false` if the wait is long, or if no wait helps.",
        ),
        (Dialect::Draft11, "ratelimit") => (
            "string",
            "Of each policy what is left: `r` units within `t` seconds.",
        ),
        (_, "ratelimit") => (
            "string",
            "The limit, what remains, and the seconds until the reset.",
        ),
        (Dialect::Draft11, "ratelimit-policy") => (
            "string",
            "Of each policy the quota: `q` units in `w` seconds.",
        ),
        (_, "ratelimit-policy") => ("string", "The quotas, each with its window `w` in seconds."),
        (Dialect::Draft03, "ratelimit-limit") => (
            "string",
            "The limit, and the quotas, each with its window `w`.",
        ),
        (Dialect::XRateLimit(ResetFormat::EpochSeconds), "x-ratelimit-reset") => {
            ("integer", "When all is left again, in seconds since 1970.")
        }
        (Dialect::OpenAi, _) if name.contains("-reset-") => {
            ("string", "How long until all is left again, as `1m30s`.")
        }
        _ if name.contains("-reset") => ("integer", "Seconds until all is left again."),
        _ if name.contains("-remaining") => ("integer", "What remains."),
        _ => ("integer", "The limit."),
    };
    object(&[
        ("description", quoted(text)),
        ("schema", object(&[("type", quoted(kind))])),
    ])
}
