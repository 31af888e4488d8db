//! The JSON Schema of the format, by which editors complete and check a file:
//! `throttle.schema.json`, which users have as [`SCHEMA`](crate::SCHEMA).
//!
//! It is made of the same [forms](crate::form) that a file is compared with, and only for
//! tests: a program needs no more than the text. Two things are written here, because the reader
//! has them as code: the forms of [texts](patterns), and what must hold [between fields](rules).

mod forms;
pub(super) mod patterns;
mod rules;
mod table;

use serde_json::{Map, Value, json};
use throttle_core::Policy;

use self::table::{any_of, reference};
use crate::document::ROOT;
use crate::form::{self, Word};
use crate::registry::{CONDITIONS, HEADER, KEYS, REFUNDS};

/// The whole schema, of the draft that editors of TOML read.
pub(super) fn schema() -> Value {
    let mut definitions = Map::new();
    forms::value(&ROOT, &mut definitions);
    let mut root = definitions.remove("").unwrap();
    let by_hand = patterns::TEXTS
        .iter()
        .map(|(name, about, pattern)| (*name, text(about, &pattern())))
        .chain(registered());
    for (name, definition) in by_hand.chain([("tiers", tiers()), ("reserve", reserve())]) {
        assert!(
            definitions.insert(name.to_owned(), definition).is_none(),
            "{name} is defined twice"
        );
    }
    // With a dot at the end, and `*.` at the start.
    definitions["host"]["maxLength"] = (253 + 3).into();
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Rules of throttle-tower".into();
    root["definitions"] = definitions.into();
    root
}

fn described_as(value: Value, about: &str, usual: Option<&str>) -> Value {
    // What stands beside a reference is ignored.
    let is_reference = value.get("$ref").is_some() && (!about.is_empty() || usual.is_some());
    let mut value = if is_reference {
        json!({ "allOf": [value] })
    } else {
        value
    };
    if !about.is_empty() {
        value["description"] = about.into();
    }
    if let Some(usual) = usual {
        value["default"] = serde_json::from_str(usual).unwrap_or_else(|_| usual.into());
    }
    value
}

fn text(about: &str, pattern: &str) -> Value {
    json!({ "description": about, "type": "string", "pattern": format!("^(?:{pattern})$") })
}

fn tiers() -> Value {
    json!({
        "description": "The tiers. Their order is that of their numbers.",
        "type": "object",
        "propertyNames": reference("name"),
        "additionalProperties": reference("tier"),
        "minProperties": 1,
        "maxProperties": Policy::MAX_TIERS,
    })
}

fn reserve() -> Value {
    json!({
        "description": "The units that requests of each class leave free for the classes above, \
            which leave less.",
        "type": "object",
        "propertyNames": { "minLength": 1 },
        "additionalProperties": { "type": "integer", "minimum": 0 },
        "minProperties": 1,
    })
}

/// What only the program knows: names that it registers. A copy of the schema for one program can
/// list them instead, as an `enum`. Here they are any text but what the file gives a meaning to by
/// itself.
fn registered() -> Vec<(&'static str, Value)> {
    let any_name = |what: &str| {
        let about = format!("The name of {what} that the program has registered.");
        json!({ "description": about, "type": "string" })
    };
    let name = |what: &str, built_in: Value| {
        let mut name = any_name(what);
        name["not"] = built_in;
        name
    };
    let keys = any_of([words(&KEYS), json!({ "pattern": format!("^{HEADER}") })]);
    vec![
        ("registered-key", name("a key", keys.clone())),
        (
            "registered-key-of-a-future",
            name("a key that a future returns", keys),
        ),
        ("registered-cost", any_name("a cost")),
        ("registered-classes", any_name("a function of classes")),
        (
            "registered-condition",
            name("a condition", words(&CONDITIONS)),
        ),
        ("registered-lookup", any_name("a lookup")),
        ("registered-refund", name("a refund", words(&REFUNDS))),
    ]
}

fn words<T>(words: &[Word<T>]) -> Value {
    json!({ "enum": form::words(words) })
}
