//! What a file can say, as tables of fields. A [walk](super::walk) compares a file with them and
//! reports where it differs, what uses a value asks for it by the names that stand here, and the
//! JSON Schema is made of them.
#![cfg_attr(
    not(test),
    expect(dead_code, reason = "a program does not make the schema")
)]

use toml::de::DeValue;

use super::names::did_you_mean;

/// What a value can be. The last text of a form is the rule for values that are something else.
pub(super) enum ValueForm {
    /// A text: the name of its pattern in the schema, the rule for what is no text, and what is
    /// wrong with a text, if anything. An empty text stands for the rule.
    Text(&'static str, &'static str, fn(&str) -> Option<String>),
    Flag,
    /// A whole number from the first bound to the second.
    Number(u64, u64),
    /// A whole number from 1. The upper bound depends on other fields, so a builder knows it.
    Units,
    /// A part of a whole: from one millionth to all but one.
    Part,
    Words(fn() -> Vec<&'static str>, &'static str),
    /// A list that has an element.
    List(&'static ValueForm, &'static str),
    /// A list that has an element, and no text or number twice.
    Distinct(&'static ValueForm, &'static str),
    /// A list of tables, which messages call by their names. It can be empty.
    Entries(&'static ValueForm, &'static str),
    Table(&'static TableForm, &'static str),
    /// A table whose fields have names of the file's own. The schema defines it by hand.
    Each(&'static str, &'static ValueForm, &'static str),
    /// The first of these forms that a value has.
    Any(&'static [ValueForm], &'static str),
    /// A form that the schema defines under a name.
    Defined(&'static Definition),
    /// A value that is always a problem, with the message.
    Never(&'static str),
}

pub(super) struct TableForm {
    /// Its name in the schema.
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) fields: &'static [FieldForm],
}

pub(super) enum FieldForm {
    /// A field: its name, and what it is for.
    One(&'static str, &'static str, Presence, ValueForm),
    /// Fields of which there must be one: what they are, and what to write.
    OneOf(&'static str, &'static str, &'static [FieldForm]),
    /// Fields that several tables have.
    Shared(&'static [FieldForm]),
}

/// Whether a table has a field.
pub(super) enum Presence {
    Optional,
    /// What a field means that is not there.
    Usual(&'static str),
    /// What to write.
    Required(&'static str),
    /// Only if the table has this other field.
    With(&'static str),
}

pub(super) struct Definition {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) presence: Presence,
    pub(super) form: ValueForm,
}

/// A word of the format, and what it means.
pub(super) type Word<T> = (&'static str, T);

pub(super) fn words<T>(words: &[Word<T>]) -> Vec<&'static str> {
    words.iter().map(|(word, _)| *word).collect()
}

/// For texts that have no form, or that are compared with something else.
pub(super) const fn nothing_wrong(_: &str) -> Option<String> {
    None
}

impl ValueForm {
    /// Whether a value has this form. What is in a list or a table does not matter.
    pub(super) fn accepts(&self, value: &DeValue<'_>) -> bool {
        match self {
            Self::Text(_, _, problem) => value.as_str().is_some_and(|text| problem(text).is_none()),
            Self::Flag => value.is_bool(),
            Self::Number(least, most) => {
                number(value).is_some_and(|number| (*least..=*most).contains(&number))
            }
            Self::Units => number(value).is_some_and(|number| number > 0),
            Self::Part => part(value).is_some(),
            Self::Words(..) => value
                .as_str()
                .is_some_and(|text| self.words().contains(&text)),
            Self::List(..) | Self::Distinct(..) | Self::Entries(..) => value.is_array(),
            Self::Table(..) | Self::Each(..) => value.is_table(),
            Self::Any(forms, _) => forms.iter().any(|form| form.accepts(value)),
            Self::Defined(definition) => definition.form.accepts(value),
            Self::Never(_) => false,
        }
    }

    /// What to write instead of a value that has another form.
    pub(super) fn rule(&self, value: &DeValue<'_>) -> String {
        match self {
            Self::Text(_, rule, problem) => value
                .as_str()
                .and_then(problem)
                .filter(|problem| !problem.is_empty())
                .unwrap_or_else(|| (*rule).to_owned()),
            Self::Flag => "it must be true or false, without quotes".to_owned(),
            Self::Number(least, u64::MAX) => format!("it must be a whole number from {least}"),
            Self::Number(least, most) => {
                format!("it must be a whole number from {least} to {most}")
            }
            Self::Units => Self::Number(1, u64::MAX).rule(value),
            Self::Part => {
                "it must be a part from 0.000001 to 0.999999, as in 0.8 for four fifths".to_owned()
            }
            Self::Words(_, rule) | Self::Any(_, rule) => {
                let near = did_you_mean(value.as_str().unwrap_or(""), self.words());
                format!("{rule}{near}")
            }
            Self::List(_, rule)
            | Self::Distinct(_, rule)
            | Self::Entries(_, rule)
            | Self::Table(_, rule)
            | Self::Each(_, _, rule)
            | Self::Never(rule) => (*rule).to_owned(),
            Self::Defined(definition) => definition.form.rule(value),
        }
    }

    /// The words that are among its forms.
    fn words(&self) -> Vec<&'static str> {
        match self {
            Self::Words(words, _) => words(),
            Self::Any(forms, _) => forms.iter().flat_map(Self::words).collect(),
            _ => Vec::new(),
        }
    }
}

impl TableForm {
    /// The name of a table that says none, if it can do without.
    pub(super) fn usual_name(&self) -> Option<&'static str> {
        match self.fields {
            [FieldForm::One(_, _, Presence::Usual(name), _), ..] => Some(name),
            _ => None,
        }
    }
}

impl FieldForm {
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::One(own, ..) => *own == name,
            Self::OneOf(_, _, fields) | Self::Shared(fields) => {
                fields.iter().any(|field| field.has(name))
            }
        }
    }
}

/// A whole number from 0.
pub(super) fn number(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

pub(super) fn part(value: &DeValue<'_>) -> Option<f64> {
    let part = value.as_float()?.as_str().parse().ok()?;
    (0.000_001..=0.999_999).contains(&part).then_some(part)
}
