//! How the limits of a file are composed: `compose`. By default a request must be admitted by all.

use std::collections::BTreeMap;

use super::entry::Entry;
use super::names::{did_you_mean, listed};
use super::problem::{Problems, RulesError};
use super::reader::Field;
use super::values::{self, Word};
use crate::limit::{LimitTree, all, any};

/// Most members of an `any`: each is one more way to decide a request.
pub(super) const MAX_WAYS: usize = 16;

/// The limits as one composition. After a problem it is not used.
pub(super) fn compose(field: Option<Field<'_>>, mut entries: Vec<Entry>, problems: &Problems) -> Option<LimitTree> {
    let Some(field) = field else {
        entries.sort_by_key(|entry| entry.span.start);
        let mut trees: Vec<LimitTree> = entries.into_iter().map(|entry| entry.tree).collect::<Option<_>>()?;
        return match trees.len() {
            0 => Some(LimitTree::nothing()),
            1 => trees.pop(),
            _ => Some(all(trees)),
        };
    };
    let mut names = Names::default();
    for (place, entry) in entries.iter().enumerate() {
        names.places.entry(&entry.name).or_insert(place);
    }
    names.mentioned.resize(entries.len(), false);
    let shape = names.read(&field)?;
    for (entry, _) in entries.iter().zip(&names.mentioned).filter(|(_, mentioned)| !**mentioned) {
        let message =
            format!("{}: compose does not name it, so it would limit nothing; add it or remove it", entry.owner);
        problems.add(Some(entry.span.clone()), message);
    }
    let mut trees: Vec<Option<LimitTree>> = entries.into_iter().map(|entry| entry.tree).collect();
    shape.tree(&mut trees)
}

/// A composition of limits by their places.
enum Shape {
    Limit(usize),
    All(Vec<Shape>),
    Any(Vec<Shape>, bool),
}

impl Shape {
    fn tree(self, trees: &mut [Option<LimitTree>]) -> Option<LimitTree> {
        let mut each =
            |members: Vec<Self>| members.into_iter().map(|member| member.tree(trees)).collect::<Option<Vec<_>>>();
        Some(match self {
            Self::All(members) => all(each(members)?),
            Self::Any(members, false) => any(each(members)?),
            Self::Any(members, true) => any(each(members)?).charge_every_admitting(),
            Self::Limit(place) => trees[place].take()?,
        })
    }
}

#[derive(Default)]
struct Names<'e> {
    /// In an order, so that of names that are as near the same one is suggested each time.
    places: BTreeMap<&'e str, usize>,
    mentioned: Vec<bool>,
    /// How many names no limit has.
    unknown: usize,
}

/// The ways to compose.
pub(super) const KINDS: [&str; 2] = ["all", "any"];

/// Whether each member of an `any` that admits is charged.
pub(super) const CHARGES: [Word<bool>; 2] = [("first", false), ("every-admitting", true)];

const FORMS: &str = "write a list of names, in which { any = [\"…\", \"…\"] } and { all = [\"…\"] } compose others";

impl Names<'_> {
    fn read(&mut self, field: &Field<'_>) -> Option<Shape> {
        if field.is_list() {
            return self.members(field).map(Shape::All);
        }
        if let Some(name) = field.text() {
            return self.limit(field, name).map(Shape::Limit);
        }
        let table = field.section(FORMS)?;
        let (kind, members) = table.one_of(&KINDS, "composition", FORMS)?;
        let charge = if kind == "any" { table.field("charge") } else { None };
        let every = charge.map_or(Some(false), |charge| charges_every(&charge));
        let shapes = self.members(&members);
        table.finish();
        let (shapes, every) = (shapes?, every?);
        if kind == "any" && shapes.len() > MAX_WAYS {
            members.problem_as(format_args!(
                "{} has {} members: an any has at most {MAX_WAYS}; nest it, or join limits",
                members.name(),
                shapes.len()
            ));
        }
        Some(if kind == "all" { Shape::All(shapes) } else { Shape::Any(shapes, every) })
    }

    fn members(&mut self, field: &Field<'_>) -> Option<Vec<Shape>> {
        let members: Vec<_> = field.filled_list(FORMS)?.iter().map(|member| self.read(member)).collect();
        members.into_iter().collect()
    }

    fn limit(&mut self, field: &Field<'_>, name: &str) -> Option<usize> {
        let Some(place) = self.places.get(name).copied() else {
            self.unknown += 1;
            // Names are read in the file's order, and no more problems are shown: a suggestion takes time.
            if self.unknown > RulesError::MAX_PROBLEMS {
                field.problem("no limit has this name");
                return None;
            }
            let known = || self.places.keys().copied();
            let near = did_you_mean(name, known());
            let near = if near.is_empty() { format!("; there are {}", listed(known())) } else { near };
            field.problem(format_args!("no limit has this name{near}"));
            return None;
        };
        if std::mem::replace(&mut self.mentioned[place], true) {
            field.problem("the limit is named twice; a request asks it once, so name it in one place");
            return None;
        }
        Some(place)
    }
}

fn charges_every(field: &Field<'_>) -> Option<bool> {
    let charges_every = values::word(field.text(), &CHARGES);
    if charges_every.is_none() {
        field.problem("it must be \"first\" (the default) or \"every-admitting\"");
    }
    charges_every
}
