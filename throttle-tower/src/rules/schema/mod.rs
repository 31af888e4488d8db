//! The JSON Schema of the format, by which editors complete and check a file: `throttle.schema.json`, which users have
//! as [`SCHEMA`](super::SCHEMA).
//!
//! It is made here, and only for tests: a program needs no more than the text. Words and bounds are those of the
//! reader's own tables. The fields of each table are compared with those that the reader knows, see [`fields`].

mod algorithm;
mod composition;
mod fields;
mod key;
mod limit;
mod matching;
mod patterns;
mod registered;
mod sections;
mod table;
mod texts;
mod value;
mod written;

use serde_json::{Map, Value, json};
use throttle_core::PolicySet;

use self::table::{Table, any_of, reference};
use self::value::described;
use super::document::VERSION;
use super::entry::Kind;

/// The whole schema, of the draft that editors of TOML read.
fn schema() -> Value {
    let mut root = Table::new("", "Limits on requests, as a file that throttle-tower reads.")
        .required("version", json!({ "description": "The version of the format.", "enum": [VERSION] }))
        .field("client-ip", reference("client-ip"))
        .field("defaults", reference("defaults"))
        .field("layer", reference("layer"))
        .field("compose", reference("compose"))
        .field("when", described("when", "Which requests the layer applies to; the others pass untouched."))
        .field("limit", list_of("limit", "Limits on rates. An empty list says that every request is to be admitted."))
        .field("plans", list_of("plans", "Limits that depend on the client's plan."))
        .field("concurrency", concurrency())
        .rule(any_of(Kind::ALL.map(|kind| json!({ "required": [kind.field()] }))))
        .schema();
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Rules of throttle-tower".into();
    root["definitions"] = definitions().into();
    root
}

fn definitions() -> Map<String, Value> {
    let each = [
        sections::definitions(),
        limit::definitions(),
        algorithm::definitions(),
        key::definitions(),
        matching::definitions(),
        composition::definitions(),
        value::definitions(),
        registered::definitions(),
    ];
    let mut all = Map::new();
    for (name, definition) in each.into_iter().flatten() {
        assert!(all.insert(name.to_owned(), definition).is_none(), "{name} is defined twice");
    }
    all
}

/// Two elements that are the same would have the same name.
fn list_of(table: &str, about: &str) -> Value {
    json!({
        "description": about,
        "type": "array",
        "items": reference(table),
        "maxItems": PolicySet::MAX_POLICIES,
        "uniqueItems": true,
    })
}

/// Of several, at most one can do without a name.
fn concurrency() -> Value {
    let mut list = list_of("concurrency", "Limits on requests in flight.");
    list["if"] = json!({ "minItems": 2 });
    list["then"] = json!({ "contains": { "required": ["name"] } });
    list
}
