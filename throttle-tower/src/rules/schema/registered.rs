//! What only the program knows: names that it registers. A copy of the schema for one program can list them instead, as
//! an `enum`.

use serde_json::{Value, json};

use super::table::{Definition, any_of};
use crate::rules::registry::{CONDITIONS, HEADER, KEYS, REFUNDS};

pub(super) fn definitions() -> Vec<Definition> {
    let keys = any_of([json!({ "enum": KEYS }), json!({ "pattern": format!("^{HEADER}") })]);
    vec![
        ("registered-key", name("a key", Some(&keys))),
        ("registered-key-of-a-future", name("a key that a future returns", Some(&keys))),
        ("registered-cost", name("a cost", None)),
        ("registered-condition", name("a condition", Some(&json!({ "enum": CONDITIONS })))),
        ("registered-lookup", name("a lookup", None)),
        ("registered-refund", name("a refund", Some(&json!({ "enum": REFUNDS })))),
    ]
}

/// Any text but what the file gives a meaning to by itself.
fn name(what: &str, built_in: Option<&Value>) -> Value {
    let about = format!("The name of {what} that the program has registered.");
    let mut name = json!({ "description": about, "type": "string" });
    if let Some(built_in) = built_in {
        name["not"] = built_in.clone();
    }
    name
}
