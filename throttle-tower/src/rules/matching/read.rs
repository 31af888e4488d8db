use std::sync::Arc;

use super::host::Hosts;
use super::path::PathPattern;
use super::{Expected, Matcher, method, route};
use crate::limit::is_preflight;
use crate::rules::reader::{Field, Section};
use crate::rules::registry::{CONDITIONS, Condition, Registry, unknown};

/// Reads `match` and `when` of a limit. After a problem it matches nothing more than what was right.
pub(in crate::rules) fn read(limit: &Section<'_>, registry: &Registry) -> Matcher {
    let mut matcher = Matcher::default();
    if let Some(field) = limit.field("match") {
        let rule = "it must be a table, as in { methods = [\"POST\"], routes = [\"/login\"] }";
        if let Some(table) = field.section(rule) {
            read_match(&table, &mut matcher);
            table.finish();
        }
    }
    if let Some(field) = limit.field("when") {
        matcher.conditions = conditions(&field, registry);
    }
    matcher
}

/// Reads `when` of the document, which says to which requests the layer applies.
pub(in crate::rules) fn read_layer(root: &Section<'_>, registry: &Registry) -> Option<Arc<Matcher>> {
    let field = root.field("when")?;
    Some(Arc::new(Matcher { conditions: conditions(&field, registry), ..Matcher::default() }))
}

fn read_match(table: &Section<'_>, matcher: &mut Matcher) {
    let [methods, routes, paths, hosts] = ["methods", "routes", "paths", "hosts"].map(|name| table.field(name));
    if table.all().is_empty() {
        table.problem("match has none of methods, routes, paths and hosts: write one, or remove it");
    }
    matcher.methods = methods.map(|field| each(&field, method::parse));
    matcher.routes =
        routes.map(|field| each(&field, |text| route::check(text).map(|()| route::without_names(text).into())));
    matcher.paths = paths.map(|field| each(&field, PathPattern::parse));
    matcher.hosts = hosts.map(|field| {
        let mut hosts = Hosts::default();
        let () = each(&field, |text| hosts.add(text));
        hosts
    });
}

/// What is read from each text of a list. The list must have one.
fn each<T, C: FromIterator<T>>(field: &Field<'_>, mut read: impl FnMut(&str) -> Result<T, String>) -> C {
    let list = field.distinct_list("write a list of texts; without one, the limit applies to all");
    let one = |element: Field<'_>| {
        let text = element.expect_text("it must be text")?;
        read(text).map_err(|rule| element.problem(rule)).ok()
    };
    list.into_iter().flatten().filter_map(one).collect()
}

const FORMS: &str = "write the name of a condition, { not = \"…\" }, or a list of them, all of which must hold";

fn conditions(field: &Field<'_>, registry: &Registry) -> Vec<Expected> {
    let fields = if field.is_list() { field.filled_list(FORMS).unwrap_or_default() } else { Vec::new() };
    let one = |field: &Field<'_>| match field.is_table() {
        true => {
            let table = field.section(FORMS)?;
            let condition = table.required("not", FORMS).and_then(|name| condition(&name, false, registry));
            table.finish();
            condition
        }
        false => condition(field, true, registry),
    };
    if !field.is_list() {
        return one(field).into_iter().collect();
    }
    let mut conditions: Vec<Expected> = Vec::new();
    for field in fields {
        let Some(condition) = one(&field) else { continue };
        match conditions.iter().find(|other| other.name == condition.name) {
            Some(other) if other.is == condition.is => {
                field.problem_as(format_args!(
                    "{}: {:?} stands in this list before; remove it",
                    field.name(),
                    other.name
                ));
            }
            Some(other) => field.problem_as(format_args!(
                "{}: {:?} must hold and not hold, so that this would never apply; remove one of them",
                field.name(),
                other.name
            )),
            None => conditions.push(condition),
        }
    }
    conditions
}

fn condition(field: &Field<'_>, is: bool, registry: &Registry) -> Option<Expected> {
    let name = field.expect_text(FORMS)?;
    let condition: Option<Condition> = match name {
        "preflight" => Some(Arc::new(is_preflight)),
        name => {
            let condition = registry.conditions.get(name).cloned();
            if condition.is_none() {
                let known: Vec<&str> =
                    CONDITIONS.into_iter().chain(registry.conditions.keys().map(String::as_str)).collect();
                field.problem(unknown("condition", name, &known, "condition"));
            }
            condition
        }
    };
    Some(Expected { name: name.to_owned(), condition: condition?, is })
}
