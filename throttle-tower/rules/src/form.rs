//! What a file can say, as tables of fields. A [walk](super::walk) compares a file with them and
//! reports where it differs, what uses a value asks for it by the names that stand here, and the
//! JSON Schema is made of them.
#![cfg_attr(
    not(test),
    expect(dead_code, reason = "a program does not make the schema")
)]

use toml::de::DeValue;

use super::names::did_you_mean;

pub(super) use self::{FieldForm::*, Presence::*, ValueForm::*};

/// What a value can be. The last text of a form is the rule for values that are something else.
pub(super) enum ValueForm {
    /// A text, by the name of its pattern in the schema.
    Text(&'static str, &'static str),
    /// As [`Text`], and what is wrong with a text, if anything. An empty text stands for the rule.
    Parsed(&'static str, &'static str, fn(&str) -> Option<String>),
    Flag,
    /// A whole number from the first bound to the second.
    Number(u64, u64),
    /// A whole number from 1. The upper bound depends on other fields, so a builder knows it.
    Units,
    /// A part of a whole: from one millionth to all but one.
    Part,
    /// One of these words. An empty rule lists them.
    Words(fn() -> Vec<&'static str>, &'static str),
    /// A list that has an element.
    List(&'static ValueForm, &'static str),
    /// A list that has an element, and no text or number twice.
    Distinct(&'static ValueForm, &'static str),
    /// A list of tables, which messages call by their names. It can be empty.
    Entries(&'static ValueForm, &'static str),
    /// A table: its name in the schema, what it is for, and its fields.
    Table(
        &'static str,
        &'static str,
        &'static [FieldForm],
        &'static str,
    ),
    /// A table whose fields have names of the file's own. The schema defines it by hand.
    Each(&'static str, &'static ValueForm, &'static str),
    /// The first of these forms that a value has.
    Any(&'static [ValueForm], &'static str),
    Defined(&'static Definition),
    /// A value that is always a problem, with the message.
    Never(&'static str),
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

/// A form that the schema defines under a name.
pub(super) struct Definition(
    pub(super) &'static str,
    /// What it is for.
    pub(super) &'static str,
    pub(super) Presence,
    pub(super) ValueForm,
);

/// A word of the format, and what it means.
pub(super) type Word<T> = (&'static str, T);

pub(super) fn words<T>(words: &[Word<T>]) -> Vec<&'static str> {
    words.iter().map(|(word, _)| *word).collect()
}

impl ValueForm {
    /// What is wrong with a value, if anything. What is in a list or a table does not matter.
    pub(super) fn problem(&self, value: &DeValue<'_>) -> Option<String> {
        let text = value.as_str();
        let (fits, rule) = match self {
            Text(_, rule) => (text.is_some(), *rule),
            Parsed(_, rule, problem) => match text.map(problem) {
                Some(Some(problem)) if !problem.is_empty() => return Some(problem),
                checked => (checked == Some(None), *rule),
            },
            Flag => (value.is_bool(), "it must be true or false, without quotes"),
            Number(least, most) => {
                return match number(value) {
                    Some(number) if (*least..=*most).contains(&number) => None,
                    _ if *most == u64::MAX => {
                        Some(format!("it must be a whole number from {least}"))
                    }
                    _ => Some(format!("it must be a whole number from {least} to {most}")),
                };
            }
            Units => return Number(1, u64::MAX).problem(value),
            Part => (
                part(value).is_some(),
                "it must be a part from 0.000001 to 0.999999, as in 0.8 for four fifths",
            ),
            Words(words, rule) => (text.is_some_and(|text| words().contains(&text)), *rule),
            List(_, rule) | Distinct(_, rule) | Entries(_, rule) => (value.is_array(), *rule),
            Table(.., rule) | Each(.., rule) => (value.is_table(), *rule),
            Any(forms, rule) => (
                forms.iter().any(|form| form.problem(value).is_none()),
                *rule,
            ),
            Defined(Definition(.., form)) => return form.problem(value),
            Never(message) => (false, *message),
        };
        (!fits).then(|| {
            let near = did_you_mean(text.unwrap_or(""), self.words());
            match rule {
                "" => format!("it must be one of {}{near}", self.words().join(", ")),
                _ => format!("{rule}{near}"),
            }
        })
    }

    /// The words that are among its forms.
    fn words(&self) -> Vec<&'static str> {
        match self {
            Words(words, _) => words(),
            Any(forms, _) => forms.iter().flat_map(Self::words).collect(),
            _ => Vec::new(),
        }
    }
}

impl FieldForm {
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            One(own, ..) => *own == name,
            OneOf(.., fields) | Shared(fields) => fields.iter().any(|field| field.has(name)),
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
