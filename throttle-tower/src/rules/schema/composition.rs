//! How the limits of a file are composed: `compose`.

use serde_json::{Value, json};

use super::table::{Definition, Table, any_of, reference};
use super::value::{list_of, with_default, words};
use crate::rules::compose::{CHARGES, KINDS, MAX_WAYS};

pub(super) fn definitions() -> Vec<Definition> {
    let tables = KINDS.map(|kind| table(kind).definition());
    let forms = ["name", "members"].into_iter().chain(tables.iter().map(|(name, _)| *name));
    let mut compose = any_of(forms.map(reference));
    compose["description"] =
        "The names of all limits, each once: a list must be admitted by all, { any = [\"…\", \"…\"] } by one. By \
         default all limits must admit a request."
            .into();
    let mut definitions = vec![("compose", compose), ("members", members("All must admit a request."))];
    definitions.extend(tables);
    definitions
}

fn table(kind: &str) -> Table {
    match kind {
        "all" => Table::new("all", "All must admit a request.").required("all", reference("members")),
        "any" => {
            let mut ways = members("One must admit a request. They are asked in their order.");
            ways["maxItems"] = json!(MAX_WAYS);
            let charges = words("Which members are charged.", CHARGES.map(|(word, _)| word));
            Table::new("any", "One must admit a request.")
                .required("any", ways)
                .field("charge", with_default(charges, "first"))
        }
        _ => panic!("{kind} is not described"),
    }
}

fn members(about: &str) -> Value {
    list_of(about, &reference("compose"))
}
