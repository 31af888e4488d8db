//! Reads a parsed document by hand instead of through serde: serde stops at the first unknown field or wrong type, and
//! a file is reported with everything that is wrong with it. What a section asks for is what it knows, so there is no
//! list of fields beside the code that reads them.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::Range;

use throttle_core::ConfigError;
use toml::de::{DeTable, DeValue};

use super::names::{did_you_mean, listed};
use super::problem::Problems;
use super::shown::shorten;
use super::value_text::value_text;

/// A table of the document.
pub(super) struct Section<'a> {
    /// What a message calls it: `limit "per-ip"`, or nothing for the document itself.
    owner: String,
    /// What stands before the names of its fields: `gcra.`
    prefix: String,
    table: &'a DeTable<'a>,
    span: Range<usize>,
    known: RefCell<Vec<&'static str>>,
    problems: &'a Problems,
}

/// Fields of the document that TOML takes for those of the table above them, if they stand below one.
const ROOT_FIELDS: [&str; 5] = ["compose", "version", "defaults", "layer", "when"];

/// A value of the document.
pub(super) struct Field<'a> {
    owner: String,
    /// With the names of the tables around it: `gcra.rate`.
    name: String,
    value: &'a DeValue<'a>,
    pub(super) span: Range<usize>,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    /// The whole document.
    pub(super) fn root(table: &'a DeTable<'a>, problems: &'a Problems) -> Self {
        Self::new(String::new(), String::new(), table, 0..0, problems)
    }

    fn new(owner: String, prefix: String, table: &'a DeTable<'a>, span: Range<usize>, problems: &'a Problems) -> Self {
        Self { owner, prefix, table, span, known: RefCell::default(), problems }
    }

    /// The same table under another name: a limit is called by its name as soon as that is read.
    pub(super) fn called(mut self, owner: String) -> Self {
        self.owner = owner;
        self
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    pub(super) fn problems(&self) -> &'a Problems {
        self.problems
    }

    /// The field of that name, if it is there. `on_error` is read as `on-error`.
    pub(super) fn field(&self, name: &'static str) -> Option<Field<'a>> {
        self.known.borrow_mut().push(name);
        let mut found = self.table.iter().filter(|(key, _)| is_spelling_of(key.get_ref(), name));
        let (_, value) = found.next()?;
        for (key, _) in found {
            self.problem_at(key.span(), format_args!("{} stands twice, with - and with _: keep one", key.get_ref()));
        }
        Some(self.value(name, value))
    }

    /// As [`field`](Self::field), for a field that messages do not offer.
    pub(super) fn field_if_written(&self, name: &'static str) -> Option<Field<'a>> {
        let is_written = self.table.iter().any(|(key, _)| is_spelling_of(key.get_ref(), name));
        is_written.then(|| self.field(name)).flatten()
    }

    /// As [`field`](Self::field); a problem if the field is not there.
    pub(super) fn required(&self, name: &'static str, remedy: &str) -> Option<Field<'a>> {
        let field = self.field(name);
        if field.is_none() {
            self.problem(format_args!("{}{name} is missing: {remedy}", self.prefix));
        }
        field
    }

    /// The one field of these that is there.
    pub(super) fn one_of(&self, names: &[&'static str], what: &str, remedy: &str) -> Option<(&'static str, Field<'a>)> {
        let found: Vec<_> = names.iter().filter_map(|name| Some((*name, self.field(name)?))).collect();
        if found.len() > 1 {
            let all = listed(found.iter().map(|(name, _)| *name));
            let (_, last) = found.into_iter().max_by_key(|(_, field)| field.span.start)?;
            last.problem_as(format_args!("there is more than one {what} ({all}): keep one"));
            return None;
        }
        if found.is_empty() {
            let path = self.prefix.strip_suffix('.').map_or_else(String::new, |path| format!("{path}: "));
            self.problem(format_args!("{path}the {what} is missing: {remedy}"));
        }
        found.into_iter().next()
    }

    /// All fields, in the file's order, whatever their names.
    pub(super) fn all(&self) -> Vec<(&'a str, Field<'a>)> {
        let mut all: Vec<_> = self.table.iter().collect();
        all.sort_by_key(|(key, _)| key.span().start);
        all.into_iter().map(|(key, value)| (&**key.get_ref(), self.value(key.get_ref(), value))).collect()
    }

    /// Reports the fields that nothing asked for.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if known.iter().any(|known| is_spelling_of(name, known)) {
                continue;
            }
            if self.problems.are_full() {
                self.problems.add(None, "");
                continue;
            }
            let mut names = known.clone();
            names.sort_unstable();
            // A field that is checked together with another one was asked for twice.
            names.dedup();
            let near = did_you_mean(&name.replace('_', "-"), names.iter().copied());
            let path = format!("{}{}", self.prefix, shown(name));
            let near = match ROOT_FIELDS.iter().find(|field| is_spelling_of(name, field)) {
                Some(_) if !self.owner.is_empty() => "; write it before the first [[limit]]".to_owned(),
                Some(_) if !self.prefix.is_empty() => "; write it at the top, before the first [section]".to_owned(),
                _ => near,
            };
            let near = if near.is_empty() { format!("; the fields are {}", names.join(", ")) } else { near };
            self.problem_at(key.span(), format_args!("{path} is not a field{near}"));
        }
    }

    /// A problem of the table as a whole.
    pub(super) fn problem(&self, message: impl Display) {
        self.problem_at(self.span.clone(), message);
    }

    fn problem_at(&self, span: Range<usize>, message: impl Display) {
        self.problems.add(Some(span), with_owner(&self.owner, message));
    }

    fn value(&self, name: &str, value: &'a toml::Spanned<DeValue<'a>>) -> Field<'a> {
        Field {
            owner: self.owner.clone(),
            name: format!("{}{}", self.prefix, shown(name)),
            value: value.get_ref(),
            span: value.span(),
            problems: self.problems,
        }
    }
}

impl<'a> Field<'a> {
    /// What a message calls it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reports the value: "field is value: rule".
    pub(super) fn problem(&self, rule: impl Display) {
        self.problem_as(format_args!("{} is {}: {rule}", self.name, self.shown()));
    }

    /// Reports a message of its own about the field.
    pub(super) fn problem_as(&self, message: impl Display) {
        self.problems.add(Some(self.span.clone()), with_owner(&self.owner, message));
    }

    /// Reports an error of a builder, which names its field itself.
    pub(super) fn config_problem(&self, error: &ConfigError) {
        let text = without_policy(error);
        let is_the_value = self.as_number().is_some_and(|number| number.to_string() == error.value());
        match text.strip_prefix(&format!("{} is {}: ", error.field(), error.value())) {
            Some(rule) if is_the_value => self.problem(rule),
            _ => self.problem_as(format_args!("{}: {text}", self.name)),
        }
    }

    /// The value on one line.
    pub(super) fn as_toml(&self) -> String {
        value_text(self.value)
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub(super) fn is_list(&self) -> bool {
        self.value.is_array()
    }

    /// A text, or else a problem.
    pub(super) fn expect_text(&self, rule: &str) -> Option<&'a str> {
        let text = self.text();
        if text.is_none() {
            self.problem(rule);
        }
        text
    }

    /// A whole number from `least` to `most`, or else a problem.
    pub(super) fn number(&self, least: u64, most: u64) -> Option<u64> {
        let rule = || match most {
            u64::MAX => format!("it must be a whole number from {least}"),
            _ => format!("it must be a whole number from {least} to {most}"),
        };
        let number = self.as_number().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            self.problem(rule());
        }
        number
    }

    /// The value, if it is a whole number from 0.
    pub(super) fn as_number(&self) -> Option<u64> {
        self.value.as_integer().and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok())
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.problem("it must be true or false, without quotes");
        }
        value
    }

    /// A table, or else a problem.
    pub(super) fn section(&self, rule: &str) -> Option<Section<'a>> {
        let Some(table) = self.value.as_table() else {
            self.problem(rule);
            return None;
        };
        let prefix = format!("{}.", self.name);
        Some(Section::new(self.owner.clone(), prefix, table, self.span.clone(), self.problems))
    }

    /// As [`section`](Self::section), for a table that messages call by a name of its own.
    pub(super) fn named_section(&self, owner: String, rule: &str) -> Option<Section<'a>> {
        let section = self.section(rule)?;
        Some(Section { prefix: String::new(), owner, ..section })
    }

    /// The elements of a list, or else a problem.
    pub(super) fn list(&self, rule: &str) -> Option<Vec<Field<'a>>> {
        let Some(list) = self.value.as_array() else {
            self.problem(rule);
            return None;
        };
        let element = |(place, value): (usize, &'a toml::Spanned<DeValue<'a>>)| Field {
            owner: self.owner.clone(),
            name: format!("{}[{place}]", self.name),
            value: value.get_ref(),
            span: value.span(),
            problems: self.problems,
        };
        Some(list.iter().enumerate().map(element).collect())
    }

    /// As [`list`](Self::list), for a list that must have an element.
    pub(super) fn filled_list(&self, rule: &str) -> Option<Vec<Field<'a>>> {
        let list = self.list(rule)?;
        if list.is_empty() {
            self.problem(format_args!("it must have at least one element; {rule}"));
            return None;
        }
        Some(list)
    }

    /// As [`filled_list`](Self::filled_list), for a list in which a text that stands twice has no effect: a problem.
    pub(super) fn distinct_list(&self, rule: &str) -> Option<Vec<Field<'a>>> {
        let list = self.filled_list(rule)?;
        let mut texts = HashSet::new();
        for element in &list {
            if element.text().is_some_and(|text| !texts.insert(text)) {
                element.problem("it stands in this list before; remove it");
            }
        }
        Some(list)
    }

    /// The value itself, for a question about its form.
    pub(super) fn raw(&self) -> &'a DeValue<'a> {
        self.value
    }

    /// The value, short and in one line.
    pub(super) fn shown(&self) -> String {
        match self.value {
            DeValue::String(text) => shorten(text, |text| format!("{text:?}")),
            DeValue::Integer(number) => shorten(&number.to_string(), str::to_owned),
            DeValue::Float(number) => shorten(&number.to_string(), str::to_owned),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Datetime(value) => value.to_string(),
            DeValue::Array(list) if list.is_empty() => "an empty list".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        }
    }
}

/// What is read from a text, and the messages of its problems.
#[cfg(test)]
pub(super) fn read_text<T>(text: &str, read: impl FnOnce(&Section<'_>) -> T) -> (T, String) {
    let problems = Problems::default();
    let table = DeTable::parse(text).unwrap();
    let value = read(&Section::root(table.get_ref(), &problems));
    let messages = problems.into_result(&"f".into(), text).map_or_else(|error| error.to_string(), |()| String::new());
    (value, messages)
}

/// A name as a file may write it.
fn shown(name: &str) -> String {
    let is_bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    shorten(name, |name| if is_bare { name.to_owned() } else { format!("{name:?}") })
}

fn is_spelling_of(name: &str, known: &str) -> bool {
    name.len() == known.len() && name.bytes().zip(known.bytes()).all(|(a, b)| a == b || (a == b'_' && b == b'-'))
}

fn with_owner(owner: &str, message: impl Display) -> String {
    if owner.is_empty() { message.to_string() } else { format!("{owner}: {message}") }
}

/// The text of an error without the policy, which messages name by themselves.
pub(super) fn without_policy(error: &ConfigError) -> String {
    let text = error.to_string();
    let policy = error.policy().map(|policy| format!("policy {policy:?}: "));
    policy.and_then(|policy| text.strip_prefix(&policy).map(str::to_owned)).unwrap_or(text)
}
