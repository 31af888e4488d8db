//! Describes a refusal for OpenAPI documents: its headers and its problem document. All of it is
//! valid in OpenAPI 3.0, too, which has no `const`.

use super::dialect::Dialect;
use super::header_schema::HeaderSchema;
use super::sdk_hints::SdkHints;
use crate::json::{object, quoted};

/// The Components Object of a layer. The body of a refusal is described if it is a problem
/// document.
pub(crate) fn components(dialect: Dialect, hints: Option<SdkHints>, has_problem: bool) -> String {
    let schemas = dialect.form().schemas.iter().chain([&RETRY_AFTER]);
    let names = dialect.exposed_names().iter().zip(schemas);
    let hints = hints.iter().flat_map(|_| SdkHints::headers());
    let (described, of_refusal): (Vec<_>, Vec<_>) = names
        .chain(hints)
        .map(|(name, schema)| {
            let name = name.as_str();
            ((name, schema.object()), (name, reference("headers", name)))
        })
        .unzip();
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

static RETRY_AFTER: HeaderSchema = HeaderSchema::integer(
    "Seconds until the request is admitted; on refusals only, if a wait helps.",
);

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
