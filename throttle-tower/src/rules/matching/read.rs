use std::sync::Arc;

use super::host::Hosts;
use super::path::PathPatterns;
use super::{Expected, Matcher, method, route};
use crate::rules::reader::{Field, Section};
use crate::rules::registry::{CONDITIONS, Condition, Registry, registered};

/// Reads `match` and `when` of a limit. After a problem it matches nothing more than what was
/// right.
pub(in crate::rules) fn read(limit: &Section<'_>, registry: &Registry) -> Matcher {
    let mut matcher = Matcher::default();
    if let Some(field) = limit.field("match", "") {
        let rule = "it must be a table, as in { methods = [\"POST\"], routes = [\"/login\"] }";
        let about =
            "Which requests the limit applies to: those that match one element of each field.";
        if let Some(table) = field.section(("match", about), rule) {
            read_match(&table, &mut matcher);
            table.finish();
        }
    }
    if let Some(field) = limit.field("when", "") {
        matcher.conditions = conditions(&field, registry);
    }
    matcher
}

/// Reads `when` of the document, which says to which requests the layer applies.
pub(in crate::rules) fn read_layer(
    root: &Section<'_>,
    registry: &Registry,
) -> Option<Arc<Matcher>> {
    let field = root.field(
        "when",
        "Which requests the layer applies to; the others pass untouched.",
    )?;
    Some(Arc::new(Matcher {
        conditions: conditions(&field, registry),
        ..Matcher::default()
    }))
}

fn read_match(table: &Section<'_>, matcher: &mut Matcher) {
    let methods = table.field("methods", "Methods, in upper case. GET includes HEAD.");
    let routes = table.field(
        "routes",
        "Templates as axum 0.8 writes them, \"/users/{id}\".",
    );
    let paths = table.field(
        "paths",
        "Patterns of paths: * is one segment, ** at the end any number.",
    );
    let hosts = table.field(
        "hosts",
        "Hosts without ports. \"*.example.com\" is all hosts below example.com.",
    );
    if table.all().is_empty() {
        table
            .problem("match has none of methods, routes, paths and hosts: write one, or remove it");
    }
    matcher.methods = methods.map(|field| each(&field, "method", method::parse));
    matcher.routes = routes.map(|field| {
        each(&field, "route", |text| {
            route::check(text).map(|()| route::without_names(text).into())
        })
    });
    matcher.paths = paths.map(|field| {
        let mut patterns = PathPatterns::default();
        let () = each(&field, "path", |text| patterns.add(text));
        patterns
    });
    matcher.hosts = hosts.map(|field| {
        let mut hosts = Hosts::default();
        let () = each(&field, "host", |text| hosts.add(text));
        hosts
    });
}

/// What is read from each text of a list. The list must have one.
fn each<T, C: FromIterator<T>>(
    field: &Field<'_>,
    form: &'static str,
    mut read: impl FnMut(&str) -> Result<T, String>,
) -> C {
    let list = field.distinct_list("write a list of texts; without one, the limit applies to all");
    let one = |element: Field<'_>| {
        let text = element.expect_text(form, "it must be text")?;
        read(text).map_err(|rule| element.problem(rule)).ok()
    };
    list.into_iter().flatten().filter_map(one).collect()
}

const FORMS: &str =
    "write the name of a condition, { not = \"…\" }, or a list of them, all of which must hold";

fn conditions(field: &Field<'_>, registry: &Registry) -> Vec<Expected> {
    let about = "A condition, { not = \"…\" }, or a list of which all must hold.";
    let one = |field: &Field<'_>| {
        field.any_form(|field| match field.is_table() {
            true => {
                let table =
                    field.section(("negation", "A condition that must not hold."), FORMS)?;
                let condition = table
                    .required("not", "", FORMS)
                    .and_then(|name| condition(&name, false, registry));
                table.finish();
                condition
            }
            false => condition(field, true, registry),
        })
    };
    let read = |field: &Field<'_>| match field.is_list() {
        true => Some(distinct(field.filled_list(FORMS)?, one)),
        false => one(field).map(|condition| vec![condition]),
    };
    field.defined("when", about, read).unwrap_or_default()
}

fn distinct<'a>(
    fields: Vec<Field<'a>>,
    read: impl Fn(&Field<'a>) -> Option<Expected>,
) -> Vec<Expected> {
    let mut conditions: Vec<Expected> = Vec::new();
    for field in fields {
        let Some(condition) = read(&field) else {
            continue;
        };
        let (element, name) = (field.name(), &condition.name);
        match conditions.iter().find(|other| other.name == *name) {
            Some(other) if other.is == condition.is => {
                field.problem_as(format_args!(
                    "{element}: {name:?} stands in this list before; \
                    remove it"
                ));
            }
            Some(_) => field.problem_as(format_args!(
                "{element}: {name:?} must hold and not hold, so that this would never apply; \
                    remove one of them"
            )),
            None => conditions.push(condition),
        }
    }
    conditions
}

fn condition(field: &Field<'_>, is: bool, registry: &Registry) -> Option<Expected> {
    field.defined("condition", "", |field| {
        let built_in = field
            .word(&CONDITIONS)
            .map(|condition| Arc::new(condition) as Condition);
        let name = field.expect_text("registered-condition", FORMS)?;
        let known = ("registered-condition", &registry.conditions);
        let condition = built_in
            .or_else(|| registered(field, name, known, &CONDITIONS.map(|(name, _)| name)))?;
        Some(Expected {
            name: name.to_owned(),
            condition,
            is,
        })
    })
}
