//! The schema of a table, as its fields and what must hold between them.

use serde_json::{Map, Value, json};

pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/definitions/{name}") })
}

pub(super) fn any_of(each: impl IntoIterator<Item = Value>) -> Value {
    json!({ "anyOf": each.into_iter().collect::<Vec<_>>() })
}

pub(super) fn one_of(each: impl IntoIterator<Item = Value>) -> Value {
    json!({ "oneOf": each.into_iter().collect::<Vec<_>>() })
}

pub(super) fn not(schema: &Value) -> Value {
    json!({ "not": schema })
}

pub(super) fn if_then(condition: &Value, consequence: &Value) -> Value {
    json!({ "if": condition, "then": consequence })
}

/// Whether a table has the field, in any spelling.
pub(super) fn has(name: &str) -> Value {
    either(
        spellings(name)
            .iter()
            .map(|name| json!({ "required": [name] })),
    )
}

/// Whether a table has the field, and it is like this.
pub(super) fn has_as(name: &str, value: &Value) -> Value {
    either(
        spellings(name)
            .iter()
            .map(|name| json!({ "required": [name], "properties": { name: value } })),
    )
}

/// Whether a table has exactly one of the fields.
pub(super) fn has_one_of(names: &[&str]) -> Value {
    let names = names.iter().flat_map(|name| spellings(name));
    one_of(names.map(|name| json!({ "required": [name] })))
}

fn either(each: impl Iterator<Item = Value>) -> Value {
    let mut each: Vec<Value> = each.collect();
    if each.len() == 1 {
        each.remove(0)
    } else {
        any_of(each)
    }
}

/// A name with `_` in place of some of its `-`; first the name itself.
fn spellings(name: &str) -> Vec<String> {
    let mut spellings = vec![String::new()];
    for c in name.chars() {
        let also = if c == '-' {
            spellings.clone()
        } else {
            Vec::new()
        };
        spellings.iter_mut().for_each(|spelling| spelling.push(c));
        spellings.extend(also.into_iter().map(|spelling| spelling + "_"));
    }
    spellings
}

/// A table with these fields: their names, whether they are required, and their values. Editors
/// offer the names under `properties`, which are spelled with `-`. Other spellings refer to them.
pub(super) fn table(
    name: &str,
    about: &str,
    fields: Vec<(&str, bool, Value)>,
    one_of: &[&str],
) -> Value {
    let (mut others, mut alone) = (Map::new(), Map::new());
    for (field, ..) in &fields {
        let spellings = spellings(field);
        if spellings.len() > 1 {
            let table = if name.is_empty() {
                "#".to_owned()
            } else {
                format!("#/definitions/{name}")
            };
            let place = format!("{table}/properties/{field}");
            others.insert(
                format!("^(?:{})$", spellings[1..].join("|")),
                json!({ "$ref": place }),
            );
        }
        for (place, spelling) in spellings.iter().enumerate().skip(1) {
            let former = either(
                spellings[..place]
                    .iter()
                    .map(|former| json!({ "required": [former] })),
            );
            alone.insert(spelling.clone(), not(&former));
        }
    }
    let required = fields
        .iter()
        .filter(|(_, is_required, _)| *is_required)
        .map(|(name, ..)| *name);
    let (plain, spelled): (Vec<&str>, Vec<&str>) = required.partition(|name| !name.contains('-'));
    let one_of = (!one_of.is_empty()).then(|| has_one_of(one_of));
    let rules: Vec<Value> = one_of
        .into_iter()
        .chain(spelled.into_iter().map(has))
        .collect();
    let properties: Map<String, Value> = fields
        .into_iter()
        .map(|(name, _, value)| (name.to_owned(), value))
        .collect();
    let mut schema = json!({
        "description": about,
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    let parts = [
        ("patternProperties", json!(others)),
        ("dependencies", json!(alone)),
        ("required", json!(plain)),
    ];
    for (keyword, part) in parts.into_iter().chain([("allOf", json!(rules))]) {
        if part != json!({}) && part != json!([]) {
            schema[keyword] = part;
        }
    }
    schema
}

#[test]
fn every_spelling_of_a_name_is_known() {
    assert_eq!(spellings("by"), ["by"]);
    assert_eq!(spellings("on-error"), ["on-error", "on_error"]);
    assert_eq!(spellings("a-b-c"), ["a-b-c", "a_b-c", "a-b_c", "a_b_c"]);
}
