//! The schema of a form.

use serde_json::{Map, Value, json};

use super::table::{any_of, reference, table};
use super::{described_as, rules};
use crate::form::*;

/// The schema of a value, and in `definitions` those of what it refers to.
pub(super) fn value(form: &ValueForm, definitions: &mut Map<String, Value>) -> Value {
    match form {
        Text(name, _) | Parsed(name, ..) => reference(name),
        Flag => json!({ "type": "boolean", "default": false }),
        Number(least, u64::MAX) => json!({ "type": "integer", "minimum": least }),
        Number(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Units => {
            json!({ "type": "integer", "minimum": 1, "maximum": (1_u64 << 53) - 1 })
        }
        Part => json!({ "type": "number", "minimum": 0.000_001, "maximum": 0.999_999 }),
        Words(words, _) => json!({ "enum": words() }),
        List(of, _) | Distinct(of, _) | Entries(of, _) => {
            let items = value(of, definitions);
            json!({ "type": "array", "items": items, "minItems": 1, "uniqueItems": true })
        }
        Table(name, about, forms, _) => {
            define(name, definitions, |definitions| {
                let (mut fields, mut one_of) = (Vec::new(), Vec::new());
                add_fields(forms, &mut fields, &mut one_of, definitions);
                rules::with_rules(name, table(name, about, fields, &one_of))
            });
            reference(name)
        }
        Each(name, of, _) => {
            value(of, definitions);
            reference(name)
        }
        Any(forms, _) => {
            let mut each: Vec<Value> = Vec::new();
            for form in *forms {
                let value = value(form, definitions);
                if !each.contains(&value) {
                    each.push(value);
                }
            }
            any_of(each)
        }
        Defined(Definition(name, about, presence, form)) => {
            define(name, definitions, |definitions| {
                described_as(value(form, definitions), about, usual(presence))
            });
            reference(name)
        }
        Never(message) => unreachable!("{message}"),
    }
}

/// Defines what is not defined, and is not being defined.
fn define(
    name: &str,
    definitions: &mut Map<String, Value>,
    value: impl FnOnce(&mut Map<String, Value>) -> Value,
) {
    if !definitions.contains_key(name) {
        definitions.insert(name.to_owned(), Value::Null);
        let value = value(definitions);
        definitions.insert(name.to_owned(), value);
    }
}

fn usual(presence: &Presence) -> Option<&'static str> {
    match presence {
        Usual(usual) => Some(usual),
        _ => None,
    }
}

fn add_fields<'n>(
    forms: &'n [FieldForm],
    fields: &mut Vec<(&'n str, bool, Value)>,
    one_of: &mut Vec<&'n str>,
    definitions: &mut Map<String, Value>,
) {
    for form in forms {
        match form {
            Shared(forms) => add_fields(forms, fields, one_of, definitions),
            OneOf(_, _, forms) => {
                let first = fields.len();
                add_fields(forms, fields, one_of, definitions);
                one_of.extend(fields[first..].iter().map(|(name, ..)| *name));
            }
            One(_, _, _, Never(_)) => {}
            One(name, about, presence, form) => {
                let mut value = value(form, definitions);
                // What the definition of a field says need not be said twice.
                let defined = value["$ref"]
                    .as_str()
                    .and_then(|place| place.rsplit('/').next())
                    .and_then(|name| definitions.get(name));
                if defined.is_none_or(|defined| defined["description"] != *about) {
                    value = described_as(value, about, usual(presence));
                }
                fields.push((name, matches!(presence, Required(_)), value));
            }
        }
    }
}
