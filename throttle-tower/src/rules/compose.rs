//! How the limits of a file are composed: `compose`. By default a request must be admitted by all.

use std::collections::BTreeMap;

use super::entry::Entry;
use super::names::{did_you_mean, listed};
use super::outline::by_default;
use super::problem::{Problems, RulesError};
use super::reader::{Field, Row, Word};
use crate::limit::{LimitTree, all, any};

/// Most members of an `any`: each is one more way to decide a request.
pub(super) const MAX_WAYS: usize = 16;

/// The limits as one composition, by what decides each. After a problem it is not used.
pub(super) fn compose(
    field: Option<Field<'_>>,
    limits: &[Entry],
    trees: Vec<Option<LimitTree>>,
    problems: &Problems,
) -> Option<LimitTree> {
    let Some(field) = field else {
        let mut in_order: Vec<_> = limits.iter().zip(trees).collect();
        in_order.sort_by_key(|(limit, _)| limit.span.start);
        let mut trees: Vec<LimitTree> = in_order
            .into_iter()
            .map(|(_, tree)| tree)
            .collect::<Option<_>>()?;
        return match trees.len() {
            0 => Some(LimitTree::nothing()),
            1 => trees.pop(),
            _ => Some(all(trees)),
        };
    };
    let (places, mentioned) = (BTreeMap::new(), vec![false; limits.len()]);
    let mut names = Names {
        places,
        trees,
        mentioned,
        unknown: 0,
    };
    for (place, limit) in limits.iter().enumerate() {
        names.places.entry(&limit.name).or_insert(place);
    }
    let tree = names.read(&field)?;
    for (Entry { owner, span, .. }, _) in limits
        .iter()
        .zip(names.mentioned)
        .filter(|(_, mentioned)| !mentioned)
    {
        let message = format!(
            "{owner}: compose does not name it, so it would limit nothing; add it or remove it"
        );
        problems.add(Some(span.clone()), message);
    }
    Some(tree)
}

struct Names<'e> {
    /// In an order, so that of names that are as near the same one is suggested each time.
    places: BTreeMap<&'e str, usize>,
    /// `None` after a problem.
    trees: Vec<Option<LimitTree>>,
    mentioned: Vec<bool>,
    /// How many names no limit has.
    unknown: usize,
}

/// The ways to compose, and whether a way is `any`.
const KINDS: [Row<bool>; 2] = [
    ("all", "All must admit a request.", false),
    (
        "any",
        "One must admit a request. They are asked in their order.",
        true,
    ),
];

/// Whether each member of an `any` that admits is charged.
const CHARGES: [Word<bool>; 2] = [("first", false), ("every-admitting", true)];

const ABOUT: &str = "The names of all limits, each once: a list must be admitted by all, { any = \
    [\"…\", \"…\"] } by \
                     one. By default all limits must admit a request.";

const FORMS: &str =
    "write a list of names, in which { any = [\"…\", \"…\"] } and { all = [\"…\"] } compose others";

impl Names<'_> {
    fn read(&mut self, field: &Field<'_>) -> Option<LimitTree> {
        field.defined("compose", ABOUT, |field| {
            if field.is_list() {
                return self.members(field).map(all);
            }
            if !field.is_table() {
                let name = field.expect_text("name", FORMS)?;
                return self.limit(field, name);
            }
            let table = field.section(
                ("composition", "How the limits within are composed."),
                FORMS,
            )?;
            let composed = table.one_of(&KINDS, ("composition", FORMS), |(.., is_any), members| {
                let charge = if *is_any {
                    table.field("charge", by_default("first", "Which members are charged."))
                } else {
                    None
                };
                let rule = "it must be \"first\" (the default) or \"every-admitting\"";
                let every = charge.map_or(Some(false), |charge| charge.expect_word(&CHARGES, rule));
                let trees = self.members(members);
                let (trees, every) = (trees?, every?);
                if *is_any && trees.len() > MAX_WAYS {
                    let (name, count) = (members.name(), trees.len());
                    members.problem_as(format_args!(
                        "{name} has {count} members: an any has at most {MAX_WAYS}; nest it, or \
                            join limits"
                    ));
                }
                Some(match (is_any, every) {
                    (false, _) => all(trees),
                    (true, false) => any(trees),
                    (true, true) => any(trees).charge_every_admitting(),
                })
            });
            if composed.is_none() {
                // It is not wrong because the kind is.
                table.field_if_written("charge");
            }
            table.finish();
            composed
        })
    }

    fn members(&mut self, field: &Field<'_>) -> Option<Vec<LimitTree>> {
        let members: Vec<_> = field
            .filled_list(FORMS)?
            .iter()
            .map(|member| self.read(member))
            .collect();
        members.into_iter().collect()
    }

    fn limit(&mut self, field: &Field<'_>, name: &str) -> Option<LimitTree> {
        let Some(place) = self.places.get(name).copied() else {
            self.unknown += 1;
            // Names are read in the file's order, and no more problems are shown: a suggestion
            // takes time.
            if self.unknown > RulesError::MAX_PROBLEMS {
                field.problem("no limit has this name");
                return None;
            }
            let known = || self.places.keys().copied();
            let near = did_you_mean(name, known());
            let near = if near.is_empty() {
                format!("; there are {}", listed(known()))
            } else {
                near
            };
            field.problem(format_args!("no limit has this name{near}"));
            return None;
        };
        if std::mem::replace(&mut self.mentioned[place], true) {
            field.problem(
                "the limit is named twice; a request asks it once, so name it in one place",
            );
            return None;
        }
        Some(self.trees[place].take().unwrap_or_else(LimitTree::nothing))
    }
}
