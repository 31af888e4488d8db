//! The documentation of the format against the format.

use std::collections::BTreeSet;

use serde_json::Value;

use super::generator::schema;

/// The names of fields and the words that a file can have.
fn names(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(parts) => {
            if let (Some(Value::Object(fields)), true) =
                (parts.get("properties"), parts.contains_key("description"))
            {
                found.extend(fields.keys().cloned());
            }
            if let Some(Value::Array(words)) = parts.get("enum") {
                found.extend(words.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            parts.values().for_each(|part| names(part, found));
        }
        Value::Array(parts) => parts.iter().for_each(|part| names(part, found)),
        _ => {}
    }
}

#[test]
fn each_field_and_each_word_is_in_the_documentation_of_the_format() {
    let lines = include_str!("../../lib.rs").lines();
    let docs: String = lines.filter(|line| line.starts_with("//!")).collect();
    let is_in_a_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let documented: BTreeSet<&str> = docs.split(|c| !is_in_a_name(c)).collect();
    let mut written = BTreeSet::new();
    names(&schema(), &mut written);
    assert!(written.len() > 120, "{}", written.len());
    let missing: Vec<_> = written
        .iter()
        .filter(|name| !documented.contains(&***name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
