//! Values of a document as TOML, so that spaces, comments and spellings make no difference.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

/// Names and values.
pub(super) type Fields = BTreeMap<String, String>;

pub(super) fn fields_text(table: &DeTable<'_>) -> Fields {
    table
        .iter()
        .map(|(name, value)| (field_name(name.get_ref()), value_text(value.get_ref())))
        .collect()
}

/// The name of a field as messages write it.
pub(super) fn field_name(name: &str) -> String {
    name.replace('_', "-")
}

/// A value on one line.
pub(super) fn value_text(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.to_string(),
        },
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Datetime(at) => at.to_string(),
        DeValue::Array(list) => {
            let list: Vec<String> = list
                .iter()
                .map(|value| value_text(value.get_ref()))
                .collect();
            format!("[{}]", list.join(", "))
        }
        DeValue::Table(table) => {
            // The order of tiers is that of their numbers.
            let mut all: Vec<_> = table.iter().collect();
            all.sort_by_key(|(name, _)| name.span().start);
            let all: Vec<String> = all
                .into_iter()
                .map(|(name, value)| {
                    format!(
                        "{} = {}",
                        field_name(name.get_ref()),
                        value_text(value.get_ref())
                    )
                })
                .collect();
            format!("{{ {} }}", all.join(", "))
        }
    }
}
