//! The fields of each table are those that the reader knows: what it asks for. Its message about a field that it does
//! not know lists them. So each table of a file that has all fields is given one more.

use std::collections::BTreeSet;
use std::ptr;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::schema;
use crate::rules::Rules;
use crate::rules::tests::{EVERYTHING, registry};

const UNKNOWN: &str = "zzzzzzzzzzzzzzzz";

#[test]
fn schema_has_the_fields_that_the_reader_knows() {
    let schema = schema();
    let document = DeTable::parse(EVERYTHING).unwrap();
    let mut described = Vec::new();
    check(document.get_ref(), 0, &[&schema], &schema, &mut described);
    for definition in schema["definitions"].as_object().unwrap().values().filter(|definition| is_table(definition)) {
        let is_described = described.iter().any(|table| ptr::eq(*table, definition));
        assert!(is_described, "no table of everything.toml is this: {definition}");
    }
}

/// Compares the table that starts at `start` with the one of these schemas that fits it, and all tables within.
fn check<'s>(
    table: &DeTable<'_>,
    start: usize,
    schemas: &[&'s Value],
    root: &'s Value,
    described: &mut Vec<&'s Value>,
) {
    let names: BTreeSet<&str> = table.iter().map(|(name, _)| &**name.get_ref()).collect();
    let forms = forms(schemas, root);
    let tables: Vec<&Value> = forms.iter().copied().filter(|form| is_table(form)).collect();
    if let (Some(known), [table]) = (known_fields(start), &fitting(&tables, &names)[..]) {
        // To find out which of several tables it is, the reader asks for fields of the others.
        let (own, of_all) = (properties(table), tables.iter().flat_map(|table| properties(table)).collect());
        assert!(own.is_subset(&known) && known.is_subset(&of_all), "known {known:?}, described {own:?}");
        described.push(table);
    }
    for (name, value) in table.iter() {
        let field = |form: &&'s Value| match &form["properties"][&**name.get_ref()] {
            Value::Null => form.get("additionalProperties").filter(|field| field.is_object()),
            field => Some(field),
        };
        let fields: Vec<&Value> = forms.iter().filter_map(field).collect();
        check_value(value, &fields, root, described);
    }
}

fn check_value<'s>(
    value: &toml::Spanned<DeValue<'_>>,
    schemas: &[&'s Value],
    root: &'s Value,
    described: &mut Vec<&'s Value>,
) {
    match value.get_ref() {
        DeValue::Table(table) => check(table, value.span().start, schemas, root, described),
        DeValue::Array(list) => {
            let elements: Vec<&Value> = forms(schemas, root).iter().filter_map(|form| form.get("items")).collect();
            list.iter().for_each(|element| check_value(element, &elements, root, described));
        }
        _ => {}
    }
}

/// What the reader says of the table that starts here; `None` for a table that is written by the dots of a key.
fn known_fields(start: usize) -> Option<BTreeSet<String>> {
    let (before, rest) = EVERYTHING.split_at(start);
    let text = match rest.as_bytes()[0] {
        _ if start == 0 => format!("{UNKNOWN} = 1\n{rest}"),
        b'{' => format!("{before}{{ {UNKNOWN} = 1, {}", &rest[1..]),
        b'[' => before.to_owned() + &rest.replacen('\n', &format!("\n{UNKNOWN} = 1\n"), 1),
        _ => return None,
    };
    let error = Rules::from_str("f", &text, registry()).expect_err(&text);
    let list = |problem: &crate::rules::Problem| {
        let (_, fields) = problem.message().split_once(&format!("{UNKNOWN} is not a field; the fields are "))?;
        Some(fields.split(", ").map(str::to_owned).collect())
    };
    Some(error.problems().iter().find_map(list).unwrap_or_else(|| panic!("{error}\n{text}")))
}

/// The schemas that these consist of.
fn forms<'s>(schemas: &[&'s Value], root: &'s Value) -> Vec<&'s Value> {
    let mut forms = Vec::new();
    let mut left = schemas.to_vec();
    while let Some(schema) = left.pop() {
        if let Some(place) = schema["$ref"].as_str() {
            left.push(root.pointer(place.trim_start_matches('#')).expect(place));
        }
        let parts = ["anyOf", "allOf"].into_iter().filter_map(|keyword| schema[keyword].as_array());
        left.extend(parts.flatten());
        forms.push(schema);
    }
    forms
}

/// What must hold between fields is no table.
fn is_table(schema: &Value) -> bool {
    schema["additionalProperties"] == false
}

fn fitting<'s>(tables: &[&'s Value], names: &BTreeSet<&str>) -> Vec<&'s Value> {
    tables.iter().copied().filter(|table| names.iter().all(|name| !table["properties"][name].is_null())).collect()
}

fn properties(table: &Value) -> BTreeSet<String> {
    table["properties"].as_object().unwrap().keys().cloned().collect()
}
