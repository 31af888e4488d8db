//! The schema as a file of the repository.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::generator::schema;
use crate::SCHEMA;

/// With `THROTTLE_WRITE_SCHEMA=1` it writes the file, and fails all the same: read what changed,
/// and run it again.
#[test]
fn schema_in_the_repository_is_that_of_the_reader() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("throttle.schema.json");
    let current = serde_json::to_string_pretty(&sorted(schema())).unwrap() + "\n";
    if std::env::var_os("THROTTLE_WRITE_SCHEMA").is_some() {
        std::fs::write(&path, current).unwrap();
        panic!("{} is written", path.display());
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let remedy =
        "THROTTLE_WRITE_SCHEMA=1 cargo test -p tower-throttle-rules --all-features --lib schema";
    let change = current
        .lines()
        .zip(written.lines())
        .find(|(current, written)| current != written);
    assert!(
        current == written,
        "{} is not current: {change:?}; write it anew with: {remedy}",
        path.display()
    );
    assert!(
        written == SCHEMA,
        "the file was written after this test was built"
    );
}

/// The order of fields must not depend on the features of `serde_json`.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> = fields
                .into_iter()
                .map(|(name, value)| (name, sorted(value)))
                .collect();
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(sorted).collect()),
        value => value,
    }
}
