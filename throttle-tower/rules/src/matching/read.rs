use std::sync::Arc;

use super::host::Hosts;
use super::path::PathPatterns;
use super::{Expectation, Matcher, method, route};
use crate::file_value::FileValue;
use crate::form::*;
use crate::registry::{CONDITIONS, Condition, Registry, registered};

pub(crate) const MATCH: FieldForm = One(
    "match",
    "",
    Optional,
    Table(
        "match",
        "Which requests the limit applies to: those that match one element of each \
                    field.",
        &[
            One(
                "methods",
                "Methods, in upper case. GET includes HEAD.",
                Optional,
                Distinct(&Text("method", ELEMENT), LIST),
            ),
            One(
                "routes",
                "Templates as axum 0.8 writes them, \"/users/{id}\".",
                Optional,
                Distinct(&Text("route", ELEMENT), LIST),
            ),
            One(
                "paths",
                "Patterns of paths: * is one segment, ** at the end any number.",
                Optional,
                Distinct(&Text("path", ELEMENT), LIST),
            ),
            One(
                "hosts",
                "Hosts without ports. \"*.example.com\" is all hosts below example.com.",
                Optional,
                Distinct(&Text("host", ELEMENT), LIST),
            ),
        ],
        "it must be a table, as in { methods = [\"POST\"], routes = [\"/login\"] }",
    ),
);

const ELEMENT: &str = "it must be text";

const LIST: &str = "write a list of texts; without one, the limit applies to all";

const FORMS: &str =
    "write the name of a condition, { not = \"…\" }, or a list of them, all of which must hold";

pub(crate) static WHEN: Definition = Definition(
    "when",
    "A condition, { not = \"…\" }, or a list of which all must hold.",
    Optional,
    Any(
        &[
            Defined(&CONDITION),
            NEGATION,
            List(&Any(&[Defined(&CONDITION), NEGATION], FORMS), FORMS),
        ],
        FORMS,
    ),
);

static CONDITION: Definition = Definition(
    "condition",
    "",
    Optional,
    Any(
        &[
            Words(|| words(&CONDITIONS), FORMS),
            Text("registered-condition", FORMS),
        ],
        FORMS,
    ),
);

const NEGATION: ValueForm = Table(
    "negation",
    "A condition that must not hold.",
    &[One("not", "", Required(FORMS), Defined(&CONDITION))],
    FORMS,
);

/// Reads `match` and `when` of a limit. After a problem it matches nothing more than what was
/// right.
pub(crate) fn read(limit: &FileValue<'_>, registry: &Registry) -> Matcher {
    let conditions = conditions(limit, registry);
    let Some(table) = limit.get("match") else {
        return Matcher {
            conditions,
            ..Matcher::default()
        };
    };
    if table.value.as_table().is_some_and(|table| table.is_empty()) {
        table.problem_as(
            "match has none of methods, routes, paths and hosts: write one, or remove it",
        );
    }
    Matcher {
        methods: table.get("methods").map(|list| each(list, method::parse)),
        routes: table.get("routes").map(|list| {
            each(list, |text| {
                route::check(text).map(|()| route::without_names(text).into())
            })
        }),
        paths: table.get("paths").map(|list| {
            let mut patterns = PathPatterns::default();
            let () = each(list, |text| patterns.add(text));
            patterns
        }),
        hosts: table.get("hosts").map(|list| {
            let mut hosts = Hosts::default();
            let () = each(list, |text| hosts.add(text));
            hosts
        }),
        conditions,
    }
}

/// Reads `when` of the document, which says to which requests the layer applies.
pub(crate) fn read_layer(root: &FileValue<'_>, registry: &Registry) -> Option<Arc<Matcher>> {
    root.get("when")?;
    Some(Arc::new(Matcher {
        conditions: conditions(root, registry),
        ..Matcher::default()
    }))
}

/// What is read from each text of a list.
fn each<T, C: FromIterator<T>>(
    list: &FileValue<'_>,
    mut read: impl FnMut(&str) -> Result<T, String>,
) -> C {
    let one = |element: &FileValue<'_>| {
        read(element.text()?)
            .map_err(|rule| element.problem(rule))
            .ok()
    };
    list.children.iter().filter_map(one).collect()
}

fn conditions(table: &FileValue<'_>, registry: &Registry) -> Vec<Expectation> {
    let mut conditions: Vec<Expectation> = Vec::new();
    for element in table.get("when").map_or(&[][..], FileValue::each) {
        let (named, is) = match element.get("not") {
            Some(named) => (named, false),
            None => (element, true),
        };
        let Some((name, condition)) = condition(named, registry) else {
            continue;
        };
        let path = &element.path;
        match conditions.iter().find(|other| other.name == name) {
            Some(other) if other.is == is => {
                element.problem_as(format_args!(
                    "{path}: {name:?} stands in this list before; remove it"
                ));
            }
            Some(_) => element.problem_as(format_args!(
                "{path}: {name:?} must hold and not hold, so that this would never apply; remove \
                 one of them"
            )),
            None => conditions.push(Expectation {
                name: name.to_owned(),
                condition,
                is,
            }),
        }
    }
    conditions
}

fn condition<'a>(named: &FileValue<'a>, registry: &Registry) -> Option<(&'a str, Condition)> {
    let condition = match named.word(&CONDITIONS) {
        Some(condition) => Arc::new(condition) as Condition,
        None => registered(
            named,
            "condition",
            &registry.conditions,
            &words(&CONDITIONS),
        )?,
    };
    Some((named.text()?, condition))
}
