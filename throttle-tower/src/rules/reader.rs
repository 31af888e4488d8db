//! Reads a parsed document by hand instead of through serde: serde stops at the first unknown field
//! or wrong type, and a file is reported with everything that is wrong with it. What a section asks
//! for is what it knows, so there is no list of fields beside the code that reads them. The
//! [schema](super::SCHEMA) is made of the same questions.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::Range;
use std::rc::Rc;

use throttle_core::ConfigError;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file_value::{FileValue, without_policy};
use super::form::ValueForm;
use super::names::{did_you_mean, listed};
use super::outline::{About, Content, Definition, Form, Forms, Known, Outline};
use super::problem::Problems;
use super::shown::shorten;
use super::value_text::{Fields, fields_text};

/// A table of the document.
pub(super) struct Section<'a> {
    /// Its name in the schema, and what it is for.
    definition: (&'static str, &'static str),
    /// What a message calls it: `limit "per-ip"`, or nothing for the document itself.
    owner: String,
    /// What stands before the names of its fields: `gcra.`
    prefix: String,
    table: &'a DeTable<'a>,
    span: Range<usize>,
    known: RefCell<Vec<Known>>,
    one_of: RefCell<Vec<&'static str>>,
    problems: &'a Problems,
    outline: Option<&'a Outline<'a>>,
}

/// Fields of the document that TOML takes for those of the table above them, if they stand below
/// one.
const ROOT_FIELDS: [&str; 6] = [
    "compose",
    "version",
    "defaults",
    "layer",
    "when",
    "candidate",
];

/// A value of the document.
#[derive(Clone)]
pub(super) struct Field<'a> {
    owner: String,
    /// With the names of the tables around it: `gcra.rate`.
    name: String,
    value: &'a DeValue<'a>,
    pub(super) span: Range<usize>,
    forms: Forms,
    problems: &'a Problems,
    outline: Option<&'a Outline<'a>>,
}

/// A field of which a table has one of several: its name, what it is for, and what reads it.
pub(super) type Row<R> = (&'static str, &'static str, R);

pub(super) use super::form::Word;

impl<'a> Section<'a> {
    /// The whole document.
    pub(super) fn root(
        table: &'a DeTable<'a>,
        problems: &'a Problems,
        outline: Option<&'a Outline<'a>>,
    ) -> Self {
        let definition = (
            "",
            "Limits on requests, as a file that throttle-tower reads.",
        );
        let (owner, prefix) = (String::new(), String::new());
        let (known, one_of) = (RefCell::default(), RefCell::default());
        Self {
            definition,
            owner,
            prefix,
            table,
            span: 0..0,
            known,
            one_of,
            problems,
            outline,
        }
    }

    /// The same table under another name: a limit is called by its name as soon as that is read.
    pub(super) fn called(self, owner: String) -> Self {
        Self {
            owner,
            prefix: String::new(),
            ..self
        }
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The field of that name, if it is there. `on_error` is read as `on-error`.
    pub(super) fn field(&self, name: &'static str, about: impl Into<About>) -> Option<Field<'a>> {
        let forms = Forms::default();
        let known = Known {
            name,
            about: about.into(),
            is_required: false,
            forms: Rc::clone(&forms),
        };
        self.known.borrow_mut().push(known);
        if let Some(outline) = self.outline {
            return Some(Field {
                forms,
                ..self.value(name, outline.samples[0])
            });
        }
        let mut found = self
            .table
            .iter()
            .filter(|(key, _)| is_spelling_of(key.get_ref(), name));
        let (_, value) = found.next()?;
        for (key, _) in found {
            self.problem_at(
                key.span(),
                format_args!(
                    "{} stands twice, with - and with _: keep one",
                    key.get_ref()
                ),
            );
        }
        Some(self.value(name, value))
    }

    /// As [`field`](Self::field), for a field that is checked with another one, and that messages
    /// do not offer.
    pub(super) fn field_if_written(&self, name: &'static str) -> Option<Field<'a>> {
        let is_spelled = |key: &str| self.outline.is_none() && is_spelling_of(key, name);
        let is_written = self.table.iter().any(|(key, _)| is_spelled(key.get_ref()));
        is_written.then(|| self.field(name, "")).flatten()
    }

    /// As [`field`](Self::field); a problem if the field is not there.
    pub(super) fn required(
        &self,
        name: &'static str,
        about: impl Into<About>,
        remedy: &str,
    ) -> Option<Field<'a>> {
        let field = self.field(name, about);
        self.known.borrow_mut().last_mut()?.is_required = true;
        if field.is_none() {
            self.problem(format_args!("{}{name} is missing: {remedy}", self.prefix));
        }
        field
    }

    /// What is read from the one field of these that is there.
    pub(super) fn one_of<R, T>(
        &self,
        rows: &[Row<R>],
        (what, remedy): (&str, &str),
        mut read: impl FnMut(&Row<R>, &Field<'a>) -> Option<T>,
    ) -> Option<T> {
        self.one_of
            .borrow_mut()
            .extend(rows.iter().map(|(name, ..)| *name));
        let found: Vec<_> = rows
            .iter()
            .filter_map(|row| Some((row, self.field(row.0, row.1)?)))
            .collect();
        if self.outline.is_some() {
            found.iter().for_each(|(row, field)| drop(read(row, field)));
        } else if found.len() > 1 {
            let all = listed(found.iter().map(|((name, ..), _)| *name));
            let (_, last) = found
                .into_iter()
                .max_by_key(|(_, field)| field.span.start)?;
            last.problem_as(format_args!(
                "there is more than one {what} ({all}): keep one"
            ));
        } else if let Some((row, field)) = found.first() {
            return read(row, field);
        } else {
            let path = self
                .prefix
                .strip_suffix('.')
                .map_or_else(String::new, |path| format!("{path}: "));
            self.problem(format_args!("{path}the {what} is missing: {remedy}"));
        }
        None
    }

    /// All fields, in the file's order, whatever their names.
    pub(super) fn all(&self) -> Vec<(&'a str, Field<'a>)> {
        if let Some(outline) = self.outline {
            return vec![("", self.value("", outline.samples[0]))];
        }
        let mut all: Vec<_> = self.table.iter().collect();
        all.sort_by_key(|(key, _)| key.span().start);
        all.into_iter()
            .map(|(key, value)| (&**key.get_ref(), self.value(key.get_ref(), value)))
            .collect()
    }

    /// What the file says, as text.
    pub(super) fn fields(&self) -> Fields {
        fields_text(self.table)
    }

    /// Reports the fields that nothing asked for.
    pub(super) fn finish(self) {
        let known = self.known.into_inner();
        if let Some(outline) = self.outline {
            let content = Content::Table {
                fields: known,
                one_of: self.one_of.into_inner(),
            };
            let (name, about) = self.definition;
            outline.definitions.borrow_mut().insert(
                name,
                Definition {
                    about: about.into(),
                    content,
                },
            );
            return;
        }
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if known.iter().any(|known| is_spelling_of(name, known.name)) {
                continue;
            }
            if self.problems.are_full() {
                self.problems.add(None, "");
                continue;
            }
            let mut names: Vec<&str> = known.iter().map(|known| known.name).collect();
            names.sort_unstable();
            // A field that is checked together with another one was asked for twice.
            names.dedup();
            let near = did_you_mean(&name.replace('_', "-"), names.iter().copied());
            let path = format!("{}{}", self.prefix, shown(name));
            let near = match ROOT_FIELDS.iter().find(|field| is_spelling_of(name, field)) {
                Some(_) if !self.owner.is_empty() => {
                    "; write it before the first [[limit]]".to_owned()
                }
                Some(_) if !self.prefix.is_empty() => {
                    "; write it at the top, before the first [section]".to_owned()
                }
                _ => near,
            };
            let near = if near.is_empty() {
                format!("; the fields are {}", names.join(", "))
            } else {
                near
            };
            let message = with_owner(&self.owner, format_args!("{path} is not a field{near}"));
            self.problems.add(Some(key.span()), message);
        }
    }

    /// A problem of the table as a whole.
    pub(super) fn problem(&self, message: impl Display) {
        self.problem_at(self.span.clone(), message);
    }

    fn problem_at(&self, span: Range<usize>, message: impl Display) {
        self.problems
            .add(Some(span), with_owner(&self.owner, message));
    }

    fn value(&self, name: &str, value: &'a Spanned<DeValue<'a>>) -> Field<'a> {
        Field {
            owner: self.owner.clone(),
            name: format!("{}{}", self.prefix, shown(name)),
            value: value.get_ref(),
            span: value.span(),
            forms: Forms::default(),
            problems: self.problems,
            outline: self.outline,
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
        self.problems
            .add(Some(self.span.clone()), with_owner(&self.owner, message));
    }

    /// Reports an error of a builder, which names its field itself.
    pub(super) fn config_problem(&self, error: &ConfigError) {
        let text = without_policy(error);
        let is_the_value = self
            .as_number()
            .is_some_and(|number| number.to_string() == error.value());
        match text.strip_prefix(&format!("{} is {}: ", error.field(), error.value())) {
            Some(rule) if is_the_value => self.problem(rule),
            _ => self.problem_as(format_args!("{}: {text}", self.name)),
        }
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

    /// The value, compared with its form.
    pub(super) fn checked(&self, form: &'static ValueForm) -> Option<FileValue<'a>> {
        self.note(Form::Walked(form));
        let (owner, path) = (self.owner.as_str().into(), self.name.clone());
        let value = FileValue::new(owner, path, self.value, self.span.clone(), self.problems);
        self.outline.is_none().then(|| value.walk(form))
    }

    /// Notes a form of the value.
    pub(super) fn note(&self, form: Form) {
        if self.outline.is_some() {
            self.forms.borrow_mut().push(form);
        }
    }

    /// What is read from a value that has several forms.
    pub(super) fn any_form<T>(&self, mut read: impl FnMut(&Self) -> Option<T>) -> Option<T> {
        let Some(outline) = self.outline else {
            return read(self);
        };
        for sample in outline.samples {
            read(&Self {
                value: sample.get_ref(),
                ..self.clone()
            });
        }
        None
    }

    /// As [`any_form`](Self::any_form), for a value that the schema defines under a name.
    pub(super) fn defined<T>(
        &self,
        name: &'static str,
        about: impl Into<About>,
        mut read: impl FnMut(&Self) -> Option<T>,
    ) -> Option<T> {
        let Some(outline) = self.outline else {
            return read(self);
        };
        self.note(Form::Named(name));
        if outline.definitions.borrow().contains_key(name) {
            return None;
        }
        let forms = Forms::default();
        let content = Content::Value(Rc::clone(&forms));
        outline.definitions.borrow_mut().insert(
            name,
            Definition {
                about: about.into(),
                content,
            },
        );
        Self {
            forms,
            ..self.clone()
        }
        .any_form(read)
    }

    /// What the value means, if it is one of these words.
    pub(super) fn word<T: Copy>(&self, words: &[Word<T>]) -> Option<T> {
        self.note(Form::Words(words.iter().map(|(word, _)| *word).collect()));
        words
            .iter()
            .find(|(word, _)| Some(*word) == self.text())
            .map(|(_, meaning)| *meaning)
    }

    /// As [`word`](Self::word); a problem if it is none.
    pub(super) fn expect_word<T: Copy>(&self, words: &[Word<T>], rule: impl Display) -> Option<T> {
        let meaning = self.word(words);
        if meaning.is_none() {
            self.problem(rule);
        }
        meaning
    }

    /// A text of a form that the schema defines, or else a problem.
    pub(super) fn expect_text(&self, form: &'static str, rule: &str) -> Option<&'a str> {
        self.note(Form::Named(form));
        let text = self.text().filter(|_| self.outline.is_none());
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
        self.note(Form::Number(least, most));
        let number = self
            .as_number()
            .filter(|number| (least..=most).contains(number));
        if number.is_none() {
            self.problem(rule());
        }
        number
    }

    /// A part of a whole, or else a problem.
    pub(super) fn part(&self) -> Option<f64> {
        self.note(Form::Part);
        let part = self
            .value
            .as_float()
            .and_then(|part| part.as_str().parse().ok());
        let part = part.filter(|part| (0.000_001..=0.999_999).contains(part));
        if part.is_none() {
            self.problem("it must be a part from 0.000001 to 0.999999, as in 0.8 for four fifths");
        }
        part
    }

    /// The value, if it is a whole number from 0.
    pub(super) fn as_number(&self) -> Option<u64> {
        self.value
            .as_integer()
            .and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok())
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.note(Form::Flag);
        let value = self.value.as_bool();
        if value.is_none() {
            self.problem("it must be true or false, without quotes");
        }
        value
    }

    /// A table that the schema defines, or else a problem.
    pub(super) fn section(
        &self,
        definition: (&'static str, &'static str),
        rule: &str,
    ) -> Option<Section<'a>> {
        self.note(Form::Named(definition.0));
        let value = self
            .outline
            .map_or(self.value, |outline| outline.samples[2].get_ref());
        let Some(table) = value.as_table() else {
            self.problem(rule);
            return None;
        };
        let (owner, prefix) = (self.owner.clone(), format!("{}.", self.name));
        let root = Section::root(table, self.problems, self.outline);
        Some(Section {
            definition,
            owner,
            prefix,
            span: self.span.clone(),
            ..root
        })
    }

    /// The elements of a list, or else a problem.
    pub(super) fn list(&self, rule: &str) -> Option<Vec<Field<'a>>> {
        let value = self
            .outline
            .map_or(self.value, |outline| outline.samples[3].get_ref());
        if !value.is_array() {
            self.problem(rule);
            return None;
        }
        let elements = Self {
            value,
            ..self.clone()
        }
        .elements();
        elements
            .iter()
            .for_each(|element| self.note(Form::List(Rc::clone(&element.forms))));
        Some(elements)
    }

    /// The elements, if the value is a list.
    pub(super) fn elements(&self) -> Vec<Field<'a>> {
        let element = |(place, value): (usize, &'a Spanned<DeValue<'a>>)| Field {
            name: format!("{}[{place}]", self.name),
            value: value.get_ref(),
            span: value.span(),
            forms: Forms::default(),
            ..self.clone()
        };
        self.value
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .map(element)
            .collect()
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

    /// As [`filled_list`](Self::filled_list), for a list in which a text or number that stands
    /// twice is a problem: it has no effect.
    pub(super) fn distinct_list(&self, rule: &str) -> Option<Vec<Field<'a>>> {
        let list = self.filled_list(rule)?;
        let mut seen = HashSet::new();
        for element in &list {
            let number = || element.value.as_integer().map(ToString::to_string);
            if element
                .text()
                .map(str::to_owned)
                .or_else(number)
                .is_some_and(|value| !seen.insert(value))
            {
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
    let value = read(&Section::root(table.get_ref(), &problems, None));
    let messages = problems
        .into_result(&"f".into(), text)
        .map_or_else(|error| error.to_string(), |()| String::new());
    (value, messages)
}

/// A name as a file may write it.
fn shown(name: &str) -> String {
    let is_bare = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    shorten(name, |name| {
        if is_bare {
            name.to_owned()
        } else {
            format!("{name:?}")
        }
    })
}

fn is_spelling_of(name: &str, known: &str) -> bool {
    name.len() == known.len()
        && name
            .bytes()
            .zip(known.bytes())
            .all(|(a, b)| a == b || (a == b'_' && b == b'-'))
}

fn with_owner(owner: &str, message: impl Display) -> String {
    if owner.is_empty() {
        message.to_string()
    } else {
        format!("{owner}: {message}")
    }
}
