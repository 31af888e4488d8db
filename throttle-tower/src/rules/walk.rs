//! Compares a file with the [forms](super::form) of its values, and reports everything that
//! differs. serde would stop at the first unknown field or wrong type.

use std::collections::HashSet;
use std::rc::Rc;

use throttle_core::PolicyName;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file_value::FileValue;
use super::form::{FieldForm, Presence, TableForm, ValueForm};
use super::names::{did_you_mean, listed};
use super::shown::shorten;

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

impl<'a> FileValue<'a> {
    /// Compares the value and what is in it with a form.
    pub(super) fn walk(mut self, form: &ValueForm) -> Self {
        match (form, self.value) {
            (ValueForm::Defined(definition), _) => return self.walk(&definition.form),
            (ValueForm::Never(message), _) => {
                self.problem_as(message);
                self.fits = false;
            }
            _ if !form.accepts(self.value) => {
                self.problem(form.rule(self.value));
                self.fits = false;
            }
            (ValueForm::Any(forms, _), value) => {
                if let Some(form) = forms.iter().find(|form| form.accepts(value)) {
                    return self.walk(form);
                }
            }
            (ValueForm::Table(form, _), DeValue::Table(table)) => self.walk_table(table, form),
            (ValueForm::Each(_, form, _), DeValue::Table(table)) => {
                let mut fields: Vec<_> = table.iter().collect();
                fields.sort_by_key(|(name, _)| name.span().start);
                for (name, value) in fields {
                    self.add(self.field(name.get_ref(), value), form);
                }
            }
            (
                ValueForm::List(of, _) | ValueForm::Distinct(of, _) | ValueForm::Entries(of, _),
                DeValue::Array(list),
            ) => self.walk_list(list, of, form),
            _ => {}
        }
        self
    }

    fn walk_list(&mut self, list: &'a [Spanned<DeValue<'a>>], of: &ValueForm, form: &ValueForm) {
        if list.is_empty() && !matches!(form, ValueForm::Entries(..)) {
            let rule = form.rule(self.value);
            self.problem(format_args!("it must have at least one element; {rule}"));
            self.fits = false;
        }
        let mut seen = HashSet::new();
        for (index, value) in list.iter().enumerate() {
            let mut element = self.child("", format!("{}[{index}]", self.path), value);
            match form {
                ValueForm::Distinct(..)
                    if simple_text(element.value).is_some_and(|text| !seen.insert(text)) =>
                {
                    element.problem("it stands in this list before; remove it");
                }
                ValueForm::Entries(ValueForm::Table(form, _), _) => element.call(form, index + 1),
                _ => {}
            }
            self.add(element, of);
        }
    }

    /// Calls a table by its name from here on.
    fn call(&mut self, form: &TableForm, number: usize) {
        let Some(table) = self.value.as_table() else {
            return;
        };
        let name = match table.get("name") {
            Some(name) => name.get_ref().as_str(),
            None => form.usual_name(),
        };
        // A wrong name is no help in finding the limit, and may be long.
        self.owner = match name.filter(|name| PolicyName::new(name).is_ok()) {
            Some(name) => format!("{} {name:?}", form.name).into(),
            None => format!("{} {number}", form.name).into(),
        };
        self.path = String::new();
    }

    fn walk_table(&mut self, table: &'a DeTable<'a>, form: &'static TableForm) {
        self.form = Some(form);
        let mut known = Vec::new();
        self.walk_fields(table, form.fields, &mut known);
        known.sort_unstable();
        for (key, _) in table.iter() {
            if !known
                .iter()
                .any(|known| is_spelling_of(key.get_ref(), known))
            {
                self.refuse_field(key, &known);
            }
        }
    }

    fn walk_fields(
        &mut self,
        table: &'a DeTable<'a>,
        fields: &'static [FieldForm],
        known: &mut Vec<&'static str>,
    ) {
        for field in fields {
            match field {
                FieldForm::Shared(fields) => self.walk_fields(table, fields, known),
                FieldForm::OneOf(what, remedy, fields) => {
                    self.walk_one_of(table, (what, remedy), fields, known);
                }
                FieldForm::One(name, _, Presence::With(other), _) if self.get(other).is_none() => {
                    // Without any other field, that one may be missing by mistake.
                    if self.children.is_empty() && self.find(table, name).is_some() {
                        known.push(name);
                    }
                }
                FieldForm::One(name, _, presence, form) => {
                    known.push(name);
                    match (self.find(table, name), presence) {
                        (Some(value), _) => self.add(value, form),
                        (None, Presence::Required(remedy)) => {
                            let path = self.path_of(name);
                            self.problem_as(format_args!("{path} is missing: {remedy}"));
                            self.fits = false;
                        }
                        (None, _) => {}
                    }
                }
            }
        }
    }

    /// Walks the one field of these that is there.
    fn walk_one_of(
        &mut self,
        table: &'a DeTable<'a>,
        (what, remedy): (&str, &str),
        fields: &'static [FieldForm],
        known: &mut Vec<&'static str>,
    ) {
        let mut found = Vec::new();
        for field in fields {
            if let FieldForm::One(name, _, _, form) = field {
                let is_never = matches!(form, ValueForm::Never(_));
                let value = self.find(table, name);
                if value.is_some() || !is_never {
                    known.push(name);
                }
                found.extend(value.map(|value| (value, form, is_never)));
            }
        }
        let is_never = found.first().is_some_and(|(.., is_never)| *is_never);
        if found.len() > 1 && !is_never {
            let all = listed(found.iter().map(|(value, ..)| value.name));
            let message = format!("there is more than one {what} ({all}): keep one");
            if let Some((last, ..)) = found.iter().max_by_key(|(value, ..)| value.span.start) {
                last.problem_as(message);
            }
            self.fits = false;
        } else if let Some((value, form, _)) = found.into_iter().next() {
            self.add(value, form);
        } else {
            let path = match &*self.path {
                "" => String::new(),
                path => format!("{path}: "),
            };
            self.problem_as(format_args!("{path}the {what} is missing: {remedy}"));
            self.fits = false;
        }
    }

    fn add(&mut self, child: Self, form: &ValueForm) {
        let child = child.walk(form);
        self.fits &= child.fits;
        self.children.push(child);
    }

    /// The field of that name. `on_error` is read as `on-error`.
    fn find(&self, table: &'a DeTable<'a>, name: &'static str) -> Option<Self> {
        let mut found = table
            .iter()
            .filter(|(key, _)| is_spelling_of(key.get_ref(), name));
        let (_, value) = found.next()?;
        for (key, _) in found {
            let rule = "stands twice, with - and with _: keep one";
            self.problem_at(key.span(), format_args!("{} {rule}", key.get_ref()));
        }
        Some(self.field(name, value))
    }

    fn refuse_field(&self, key: &Spanned<impl AsRef<str>>, known: &[&str]) {
        let name = key.get_ref().as_ref();
        if self.problems.are_full() {
            self.problems.add(None, "");
            return;
        }
        let is_of_the_root = ROOT_FIELDS.iter().any(|field| is_spelling_of(name, field));
        let remedy = if is_of_the_root && !self.owner.is_empty() {
            "; write it before the first [[limit]]".to_owned()
        } else if is_of_the_root && !self.path.is_empty() {
            "; write it at the top, before the first [section]".to_owned()
        } else {
            match did_you_mean(&name.replace('_', "-"), known.iter().copied()) {
                near if near.is_empty() => format!("; the fields are {}", known.join(", ")),
                near => near,
            }
        };
        let path = self.path_of(name);
        self.problem_at(key.span(), format_args!("{path} is not a field{remedy}"));
    }

    fn field(&self, name: &'a str, value: &'a Spanned<DeValue<'a>>) -> Self {
        self.child(name, self.path_of(name), value)
    }

    fn child(&self, name: &'a str, path: String, value: &'a Spanned<DeValue<'a>>) -> Self {
        let owner = Rc::clone(&self.owner);
        let value_of = Self::new(owner, path, value.get_ref(), value.span(), self.problems);
        Self { name, ..value_of }
    }

    fn path_of(&self, name: &str) -> String {
        match &*self.path {
            "" => shown(name),
            path => format!("{path}.{}", shown(name)),
        }
    }
}

/// A text or a number as text.
fn simple_text(value: &DeValue<'_>) -> Option<String> {
    let number = || value.as_integer().map(ToString::to_string);
    value.as_str().map(str::to_owned).or_else(number)
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
