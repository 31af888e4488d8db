//! The JSON Schema of the format, by which editors complete and check a file:
//! `throttle.schema.json`, which users have as [`SCHEMA`](crate::rules::SCHEMA).
//!
//! It is made of a dry run of the reader, and only for tests: a program needs no more than the
//! text. Two things are written here, because the reader has them as code: the forms of
//! [texts](patterns), and what must hold [between fields](rules).

mod forms;
pub(super) mod patterns;
mod rules;
mod table;

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use throttle_core::Policy;
use toml::de::DeTable;

use self::table::{any_of, reference, table};
use crate::rules::document;
use crate::rules::form::Word;
use crate::rules::layer_settings::LAYER;
use crate::rules::outline::{About, Content, Definition, Form, Known, Outline};
use crate::rules::problem::Problems;
use crate::rules::registry::{CONDITIONS, HEADER, KEYS, REFUNDS, Registry};

/// The whole schema, of the draft that editors of TOML read.
pub(super) fn schema() -> Value {
    let samples = DeTable::parse("text = \"\"\nnumber = 0\ntable = {}\nlist = [\"\"]").unwrap();
    let samples = ["text", "number", "table", "list"].map(|name| &samples.get_ref()[name]);
    let outline = Outline {
        samples,
        definitions: RefCell::default(),
    };
    let document = samples[2].get_ref().as_table().unwrap();
    assert!(
        document::read_table(
            document,
            &Problems::default(),
            &Registry::new(),
            Some(&outline)
        )
        .is_none()
    );
    let noted = outline.definitions.into_inner();
    let mut definitions: Map<String, Value> = noted
        .keys()
        .map(|name| (name.to_string(), value(name, &noted)))
        .collect();
    for form in [&LAYER] {
        forms::value(form, &mut definitions);
    }
    let mut root = definitions.remove("").unwrap();
    let by_hand = patterns::TEXTS
        .iter()
        .map(|(name, about, pattern)| (*name, text(about, &pattern())))
        .chain(registered());
    for (name, definition) in by_hand.chain([("tiers", tiers()), ("reserve", reserve())]) {
        assert!(
            definitions.insert(name.to_owned(), definition).is_none(),
            "{name} is defined twice"
        );
    }
    // With a dot at the end, and `*.` at the start.
    definitions["host"]["maxLength"] = (253 + 3).into();
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Rules of throttle-tower".into();
    root["definitions"] = definitions.into();
    root
}

fn value(name: &str, noted: &BTreeMap<&str, Definition>) -> Value {
    let Definition { about, content } = &noted[name];
    // What the definition of a field says need not be said twice.
    let is_defined = |field: &Known| match &field.forms.borrow()[..] {
        [Form::Named(name)] => noted
            .get(name)
            .is_some_and(|noted| noted.about.text == field.about.text),
        _ => false,
    };
    match content {
        Content::Value(forms) => described(any_form(&forms.borrow()), about),
        Content::Table { fields, one_of } => {
            let values = fields.iter().map(|field| {
                let value = any_form(&field.forms.borrow());
                let value = if is_defined(field) {
                    value
                } else {
                    described(value, &field.about)
                };
                (field.name, field.is_required, value)
            });
            rules::with_rules(name, table(name, about.text, values.collect(), one_of))
        }
    }
}

fn any_form(forms: &[Form]) -> Value {
    let mut each: Vec<Value> = Vec::new();
    let mut has_number = false;
    for form in forms {
        // What notes a narrower bound comes before what reads the number.
        if matches!(form, Form::Number(..)) && std::mem::replace(&mut has_number, true) {
            continue;
        }
        let value = of_form(form);
        if !each.contains(&value) {
            each.push(value);
        }
    }
    if each.len() == 1 {
        each.remove(0)
    } else {
        any_of(each)
    }
}

fn of_form(form: &Form) -> Value {
    match form {
        Form::Named(name) => reference(name),
        Form::Number(least, u64::MAX) => json!({ "type": "integer", "minimum": least }),
        Form::Number(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Form::Part => json!({ "type": "number", "minimum": 0.000_001, "maximum": 0.999_999 }),
        Form::Flag => json!({ "type": "boolean", "default": false }),
        Form::Words(words) => json!({ "enum": words }),
        Form::Walked(form) => forms::value(form, &mut Map::new()),
        Form::List(forms) => {
            let items = any_form(&forms.borrow());
            json!({ "type": "array", "items": items, "minItems": 1, "uniqueItems": true })
        }
    }
}

fn described(value: Value, about: &About) -> Value {
    described_as(value, about.text, about.default.as_deref())
}

fn described_as(value: Value, about: &str, usual: Option<&str>) -> Value {
    // What stands beside a reference is ignored.
    let is_reference = value.get("$ref").is_some() && (!about.is_empty() || usual.is_some());
    let mut value = if is_reference {
        json!({ "allOf": [value] })
    } else {
        value
    };
    if !about.is_empty() {
        value["description"] = about.into();
    }
    if let Some(usual) = usual {
        value["default"] = serde_json::from_str(usual).unwrap_or_else(|_| usual.into());
    }
    value
}

fn text(about: &str, pattern: &str) -> Value {
    json!({ "description": about, "type": "string", "pattern": format!("^(?:{pattern})$") })
}

fn tiers() -> Value {
    json!({
        "description": "The tiers. Their order is that of their numbers.",
        "type": "object",
        "propertyNames": reference("name"),
        "additionalProperties": reference("tier"),
        "minProperties": 1,
        "maxProperties": Policy::MAX_TIERS,
    })
}

fn reserve() -> Value {
    json!({
        "description": "The units that requests of each class leave free for the classes above, \
            which leave less.",
        "type": "object",
        "propertyNames": { "minLength": 1 },
        "additionalProperties": { "type": "integer", "minimum": 0 },
        "minProperties": 1,
    })
}

/// What only the program knows: names that it registers. A copy of the schema for one program can
/// list them instead, as an `enum`. Here they are any text but what the file gives a meaning to by
/// itself.
fn registered() -> Vec<(&'static str, Value)> {
    let any_name = |what: &str| {
        let about = format!("The name of {what} that the program has registered.");
        json!({ "description": about, "type": "string" })
    };
    let name = |what: &str, built_in: Value| {
        let mut name = any_name(what);
        name["not"] = built_in;
        name
    };
    let keys = any_of([words(&KEYS), json!({ "pattern": format!("^{HEADER}") })]);
    vec![
        ("registered-key", name("a key", keys.clone())),
        (
            "registered-key-of-a-future",
            name("a key that a future returns", keys),
        ),
        ("registered-cost", any_name("a cost")),
        ("registered-classes", any_name("a function of classes")),
        (
            "registered-condition",
            name("a condition", words(&CONDITIONS)),
        ),
        ("registered-lookup", any_name("a lookup")),
        ("registered-refund", name("a refund", words(&REFUNDS))),
    ]
}

fn words<T>(words: &[Word<T>]) -> Value {
    json!({ "enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
}
