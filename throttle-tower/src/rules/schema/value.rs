//! The values that fields have: words, numbers, and texts with a form.

use serde_json::{Value, json};

use super::patterns;
use super::table::{Definition, Table, reference};
use crate::rules::options::{ON_ERROR, ON_MISSING, STATUSES};

/// Below 2^53, so that every store counts exactly.
const MOST_UNITS: u64 = (1 << 53) - 1;

/// A value with a description of its own.
pub(super) fn described(name: &str, about: &str) -> Value {
    json!({ "description": about, "allOf": [reference(name)] })
}

pub(super) fn units(about: &str) -> Value {
    json!({ "description": about, "type": "integer", "minimum": 1, "maximum": MOST_UNITS })
}

/// A number without an upper bound that a file could exceed.
pub(super) fn number(about: &str, least: u64) -> Value {
    json!({ "description": about, "type": "integer", "minimum": least })
}

pub(super) fn flag(about: &str) -> Value {
    json!({ "description": about, "type": "boolean", "default": false })
}

/// One of the words; the first is the default.
pub(super) fn words<'w>(about: &str, words: impl IntoIterator<Item = &'w str>) -> Value {
    json!({ "description": about, "enum": words.into_iter().collect::<Vec<_>>() })
}

pub(super) fn with_default(mut value: Value, default: impl Into<Value>) -> Value {
    value["default"] = default.into();
    value
}

/// A list that has an element.
pub(super) fn list_of(about: &str, element: &Value) -> Value {
    json!({ "description": about, "type": "array", "items": element, "minItems": 1, "uniqueItems": true })
}

pub(super) fn text(about: &str, pattern: &str) -> Value {
    json!({ "description": about, "type": "string", "pattern": format!("^(?:{pattern})$") })
}

pub(super) fn definitions() -> Vec<Definition> {
    vec![
        (
            "name",
            text("1 to 64 printable ASCII characters, because clients read it in headers.", &patterns::printable()),
        ),
        (
            "rate",
            text("A count and a period, as in \"10/second\", \"100/15m\" or \"1000 per hour\".", &patterns::rate()),
        ),
        ("duration", text("A number and a unit, as in \"500ms\", \"15m\" or \"1 day\".", &patterns::duration())),
        ("shift", text("A duration, with a minus sign for earlier, as in \"6h\" or \"-30m\".", &patterns::shift())),
        ("utc-offset", text("Local time's offset from UTC, as in \"+01:00\".", &patterns::utc_offset())),
        ("header-name", text("The name of a header, as in \"x-api-key\".", patterns::TOKEN)),
        ("on-error", on_error()),
        ("on-missing", on_missing()),
        rejection().definition(),
    ]
}

fn on_error() -> Value {
    json!({
        "description": "What happens while the store fails: \"open\" admits, \"closed\" refuses, \"local/4\" decides \
                        by a share of the limit where 4 processes share it. Required with a store that can fail.",
        "anyOf": [
            { "enum": ON_ERROR.map(|(word, _)| word) },
            { "type": "string", "pattern": format!("^{}$", patterns::SHARE) },
        ],
    })
}

fn on_missing() -> Value {
    json!({
        "description": "Requests without a key: they share one budget, skip the limit, or are refused with a status, \
                        as in { reject = 401 }.",
        "anyOf": [{ "enum": ON_MISSING.map(|(word, _)| word) }, reference("rejection")],
        "default": "share",
    })
}

fn rejection() -> Table {
    let status = json!({
        "description": "The status of the response.",
        "type": "integer",
        "minimum": STATUSES.0,
        "maximum": STATUSES.1,
    });
    Table::new("rejection", "Refuses requests without a key.").required("reject", status)
}
