//! Compares a file with the [forms](super::form) of its values, and reports everything that
//! differs. serde would stop at the first unknown field or wrong type.

use std::collections::HashSet;
use std::rc::Rc;

use throttle_core::PolicyName;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file_value::FileValue;
use super::form::*;
use super::names::{did_you_mean, listed};
use super::shown::shorten;
use super::value_text::{field_name, value_text};

/// Fields of the document that TOML takes for those of the table above them, if they stand below
/// one.
const ROOT_FIELDS: [&str; 5] = ["compose", "version", "defaults", "layer", "when"];

impl<'a> FileValue<'a> {
    /// Compares the value and what is in it with a form.
    pub(super) fn walk(mut self, form: &ValueForm) -> Self {
        let value = self.value;
        if let Some(rule) = form.problem(value) {
            self.refuse(match form {
                Never(message) => (*message).to_owned(),
                _ => format!("{} is {}: {rule}", self.path, self.shown()),
            });
            return self;
        }
        match (form, value) {
            (Defined(Definition(.., form)), _) => return self.walk(form),
            (Any(forms, _), _) => {
                if let Some(form) = forms.iter().find(|form| form.problem(value).is_none()) {
                    return self.walk(form);
                }
            }
            (Table(_, _, fields, _), DeValue::Table(table)) => self.walk_table(table, fields),
            (Each(_, form, _), DeValue::Table(table)) => {
                let mut fields: Vec<_> = table.iter().collect();
                fields.sort_by_key(|(name, _)| name.span().start);
                for (name, value) in fields {
                    self.add(self.field(name.get_ref(), value), form);
                }
            }
            (List(of, _) | Distinct(of, _) | Entries(of, _), DeValue::Array(list)) => {
                self.walk_list(list, of, form);
            }
            _ => {}
        }
        self
    }

    fn refuse(&mut self, message: String) {
        self.problem_as(message);
        self.fits = false;
    }

    fn walk_list(&mut self, list: &'a [Spanned<DeValue<'a>>], of: &ValueForm, form: &ValueForm) {
        if let (List(_, rule) | Distinct(_, rule), []) = (form, list) {
            let path = &self.path;
            self.refuse(format!(
                "{path} is an empty list: it must have at least one element; {rule}"
            ));
        }
        let mut seen = HashSet::new();
        for (index, value) in list.iter().enumerate() {
            let mut element = self.child("", format!("{}[{index}]", self.path), value);
            match (form, of, element.value) {
                (Distinct(..), _, DeValue::String(_) | DeValue::Integer(_))
                    if !seen.insert(value_text(element.value)) =>
                {
                    element.problem("it stands in this list before; remove it");
                }
                (Entries(..), Table(kind, _, fields, _), DeValue::Table(table)) => {
                    element.call(table, kind, fields, index + 1);
                }
                _ => {}
            }
            self.add(element, of);
        }
    }

    /// Calls a limit by its name from here on.
    fn call(&mut self, table: &'a DeTable<'a>, kind: &str, fields: &[FieldForm], number: usize) {
        let name = match (table.get("name"), fields) {
            (Some(name), _) => name.get_ref().as_str(),
            (None, [One(_, _, Usual(usual), _), ..]) => Some(*usual),
            (None, _) => None,
        };
        self.name = name.unwrap_or("");
        self.path = String::new();
        // A wrong name is no help in finding the limit, and may be long.
        self.owner = match PolicyName::new(self.name) {
            Ok(name) => format!("{kind} {:?}", name.as_str()).into(),
            Err(_) => format!("{kind} {number}").into(),
        };
    }

    fn walk_table(&mut self, table: &'a DeTable<'a>, fields: &'static [FieldForm]) {
        self.fields = fields;
        let mut known = Vec::new();
        self.walk_fields(table, fields, &mut known);
        known.sort_unstable();
        for (key, _) in table.iter() {
            let name = field_name(key.get_ref());
            if known.contains(&&*name) {
                continue;
            }
            if self.problems.are_full() {
                self.problems.add(None, "");
                continue;
            }
            let is_of_the_root = ROOT_FIELDS.contains(&&*name);
            let remedy = match did_you_mean(&name, known.iter().copied()) {
                _ if is_of_the_root && !self.owner.is_empty() => {
                    "; write it before the first [[limit]]".to_owned()
                }
                _ if is_of_the_root && !self.path.is_empty() => {
                    "; write it at the top, before the first [section]".to_owned()
                }
                near if near.is_empty() => format!("; the fields are {}", known.join(", ")),
                near => near,
            };
            let path = self.path_of(key.get_ref());
            self.problem_at(key.span(), format_args!("{path} is not a field{remedy}"));
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
                Shared(fields) => self.walk_fields(table, fields, known),
                OneOf(what, remedy, fields) => {
                    let mut found = Vec::new();
                    for field in *fields {
                        let One(name, _, _, form) = field else {
                            continue;
                        };
                        let value = self.find(table, name);
                        if value.is_some() || !matches!(form, Never(_)) {
                            known.push(name);
                        }
                        found.extend(value.map(|value| (value, form)));
                    }
                    self.walk_one_of(found, what, remedy);
                }
                One(name, _, With(other), _) if self.get(other).is_none() => {
                    // Without any other field, that one may be missing by mistake.
                    if self.children.is_empty() && self.find(table, name).is_some() {
                        known.push(name);
                    }
                }
                One(name, _, presence, form) => {
                    known.push(name);
                    match (self.find(table, name), presence) {
                        (Some(value), _) => self.add(value, form),
                        (None, Required(remedy)) => {
                            let path = self.path_of(name);
                            self.refuse(format!("{path} is missing: {remedy}"));
                        }
                        (None, _) => {}
                    }
                }
            }
        }
    }

    fn walk_one_of(
        &mut self,
        mut found: Vec<(Self, &'static ValueForm)>,
        what: &str,
        remedy: &str,
    ) {
        match &found[..] {
            [] if self.path.is_empty() => {
                self.refuse(format!("the {what} is missing: {remedy}"));
            }
            [] => self.refuse(format!("{}: the {what} is missing: {remedy}", self.path)),
            [_] | [(_, Never(_)), ..] => {
                let (value, form) = found.swap_remove(0);
                self.add(value, form);
            }
            several => {
                let all = listed(several.iter().map(|(value, _)| value.name));
                let last = several.iter().max_by_key(|(value, _)| value.span.start);
                let message = format!("there is more than one {what} ({all}): keep one");
                last.into_iter()
                    .for_each(|(last, _)| last.problem_as(&message));
                self.fits = false;
            }
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
            .filter(|(key, _)| field_name(key.get_ref()) == name);
        let (_, value) = found.next()?;
        for (key, _) in found {
            let rule = "stands twice, with - and with _: keep one";
            self.problem_at(key.span(), format_args!("{} {rule}", key.get_ref()));
        }
        Some(self.field(name, value))
    }

    fn field(&self, name: &'a str, value: &'a Spanned<DeValue<'a>>) -> Self {
        self.child(name, self.path_of(name), value)
    }

    fn child(&self, name: &'a str, path: String, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            name,
            owner: Rc::clone(&self.owner),
            path,
            span: value.span(),
            ..Self::root(value.get_ref(), self.problems)
        }
    }

    /// The name of a field with those of the tables around it, as a file may write it.
    fn path_of(&self, name: &str) -> String {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let shown = shorten(name, |shown| match name.chars().all(is_bare) {
            true if !name.is_empty() => shown.to_owned(),
            _ => format!("{shown:?}"),
        });
        match &*self.path {
            "" => shown,
            path => format!("{path}.{shown}"),
        }
    }
}
