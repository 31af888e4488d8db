//! A value of a file that a [walk](super::walk) has compared with its form. What is read of it is
//! nothing if the value has another form, because the walk has reported that.

use std::fmt::Display;
use std::ops::Range;
use std::rc::Rc;

use throttle_core::ConfigError;
use toml::de::DeValue;

use super::form::{FieldForm, Word, number, part};
use super::problem::Problems;
use super::shown::shorten;
use super::value_text::value_text;

pub(super) struct FileValue<'a> {
    /// The name of the field that has it, or of the limit that it is.
    pub(super) name: &'a str,
    /// What a message calls the limit that has it: `limit "per-ip"`, or nothing.
    pub(super) owner: Rc<str>,
    /// The name of the field with those of the tables around it: `gcra.rate`.
    pub(super) path: String,
    pub(super) value: &'a DeValue<'a>,
    pub(super) span: Range<usize>,
    /// Of a table those that it can have.
    pub(super) fields: &'static [FieldForm],
    /// Whether it has its form, and so has all that is in it.
    pub(super) fits: bool,
    /// Of a table the fields that have a form, of a list its elements.
    pub(super) children: Vec<Self>,
    pub(super) problems: &'a Problems,
}

impl<'a> FileValue<'a> {
    pub(super) fn root(value: &'a DeValue<'a>, problems: &'a Problems) -> Self {
        Self {
            name: "",
            owner: Rc::default(),
            path: String::new(),
            value,
            span: 0..0,
            fields: &[],
            fits: true,
            children: Vec::new(),
            problems,
        }
    }

    /// The field of that name, if the table has it.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let is_known = self.fields.iter().any(|field| field.has(name));
        debug_assert!(is_known || self.fields.is_empty(), "{name} is no field");
        self.children.iter().find(|child| child.name == name)
    }

    /// The field of that name, or, if the table does not have it, the table itself: a table has
    /// none of the values that a field has, and is where a problem of the missing field is shown.
    pub(super) fn at(&self, name: &str) -> &Self {
        self.get(name).unwrap_or(self)
    }

    /// The elements of a list, or the one value that stands for such a list.
    pub(super) fn each(&self) -> &[Self] {
        if self.value.is_array() {
            &self.children
        } else {
            std::slice::from_ref(self)
        }
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.value.as_str().filter(|_| self.fits)
    }

    pub(super) fn number(&self) -> Option<u64> {
        number(self.value).filter(|_| self.fits)
    }

    pub(super) fn part(&self) -> Option<f64> {
        part(self.value)
    }

    pub(super) fn flag(&self) -> Option<bool> {
        self.value.as_bool()
    }

    /// What the value means, if it is one of these words.
    pub(super) fn word<T: Copy>(&self, words: &[Word<T>]) -> Option<T> {
        words
            .iter()
            .find(|(word, _)| Some(*word) == self.value.as_str())
            .map(|(_, meaning)| *meaning)
    }

    /// Reports the value: "field is value: rule".
    pub(super) fn problem(&self, rule: impl Display) {
        self.problem_as(format_args!("{} is {}: {rule}", self.path, self.shown()));
    }

    /// Reports a message of its own about the value.
    pub(super) fn problem_as(&self, message: impl Display) {
        self.problem_at(self.span.clone(), message);
    }

    pub(super) fn problem_at(&self, span: Range<usize>, message: impl Display) {
        let message = match &*self.owner {
            "" => message.to_string(),
            owner => format!("{owner}: {message}"),
        };
        self.problems.add(Some(span), message);
    }

    /// Reports an error of a builder, which names its field itself.
    pub(super) fn config_problem(&self, error: &ConfigError) {
        let text = without_policy(error);
        let is_the_value =
            number(self.value).is_some_and(|number| number.to_string() == error.value());
        match text.strip_prefix(&format!("{} is {}: ", error.field(), error.value())) {
            Some(rule) if is_the_value => self.problem(rule),
            _ => self.problem_as(format_args!("{}: {text}", self.path)),
        }
    }

    /// The value, short and in one line.
    pub(super) fn shown(&self) -> String {
        match self.value {
            DeValue::String(text) => shorten(text, |text| format!("{text:?}")),
            // As it is written, 0x20 for example.
            DeValue::Integer(number) => shorten(&number.to_string(), str::to_owned),
            DeValue::Array(list) if list.is_empty() => "an empty list".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
            value => shorten(&value_text(value), str::to_owned),
        }
    }
}

/// The text of an error without the policy, which messages name by themselves.
pub(super) fn without_policy(error: &ConfigError) -> String {
    let text = error.to_string();
    let policy = error.policy().map(|policy| format!("policy {policy:?}: "));
    policy
        .and_then(|policy| text.strip_prefix(&policy).map(str::to_owned))
        .unwrap_or(text)
}
