//! Which requests a limit applies to: `match` and `when`.

use serde_json::{Value, json};

use super::patterns;
use super::table::{Definition, Table, any_of, reference};
use super::value::{list_of, text, words};
use crate::rules::registry::CONDITIONS;

pub(super) fn definitions() -> Vec<Definition> {
    let (name, mut matching) = requests().definition();
    matching["minProperties"] = 1.into();
    vec![(name, matching), ("when", when()), ("condition", condition()), negation().definition()]
}

fn requests() -> Table {
    let host = json!({
        "type": "string",
        "pattern": format!("^(?:{})$", patterns::host()),
        // With a dot at the end, and `*.` at the start.
        "maxLength": 253 + 3,
    });
    let each = |about: &str, one: Value| list_of(about, &one);
    Table::new("match", "Which requests the limit applies to: those that match one element of each field.")
        .field("methods", each("Methods, in upper case. GET includes HEAD.", text("A method.", patterns::METHOD)))
        .field(
            "routes",
            each("Templates as axum 0.8 writes them, \"/users/{id}\".", text("A route.", &patterns::route())),
        )
        .field(
            "paths",
            each(
                "Patterns of paths: * is one segment, ** at the end any number.",
                text("A pattern, as in \"/api/**\".", &patterns::path()),
            ),
        )
        .field("hosts", each("Hosts without ports. \"*.example.com\" is all hosts below example.com.", host))
}

fn when() -> Value {
    let mut when = any_of([
        reference("condition"),
        reference("negation"),
        list_of("All of them must hold.", &any_of(["condition", "negation"].map(reference))),
    ]);
    when["description"] = "A condition, { not = \"…\" }, or a list of which all must hold.".into();
    when
}

fn condition() -> Value {
    any_of([words("A condition that is built in.", CONDITIONS), reference("registered-condition")])
}

fn negation() -> Table {
    Table::new("negation", "A condition that must not hold.").required("not", reference("condition"))
}
