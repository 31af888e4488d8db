//! How the limits of a file are composed: `compose`. By default a request must be admitted by all.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::entry::Entry;
use super::file_value::FileValue;
use super::form::*;
use super::matching::Index;
use super::names::{did_you_mean, listed};
use super::problem::{Problems, RulesError};
use throttle_tower::limit::{IntoLimitTree, LimitTree, all, any};

/// Most members of an `any`: each is one more way to decide a request.
pub(super) const MAX_WAYS: usize = 16;

pub(super) static COMPOSE: Definition = Definition(
    "compose",
    "The names of all limits, each once: a list must be admitted by all, { any = [\"…\", \
            \"…\"] } by one. By default all limits must admit a request.",
    Optional,
    Any(
        &[
            Text("name", FORMS),
            Table(
                "composition",
                "How the limits within are composed.",
                &[
                    OneOf(
                        "composition",
                        FORMS,
                        &[
                            One(
                                "all",
                                "All must admit a request.",
                                Optional,
                                List(&Defined(&COMPOSE), FORMS),
                            ),
                            One(
                                "any",
                                "One must admit a request. They are asked in their order.",
                                Optional,
                                List(&Defined(&COMPOSE), FORMS),
                            ),
                        ],
                    ),
                    One(
                        "charge",
                        "Which members are charged.",
                        With("any"),
                        Words(
                            || words(&CHARGES),
                            "it must be \"first\" (the default) or \"every-admitting\"",
                        ),
                    ),
                ],
                FORMS,
            ),
            List(&Defined(&COMPOSE), FORMS),
        ],
        FORMS,
    ),
);

/// Whether each member of an `any` that admits is charged.
const CHARGES: [Word<bool>; 2] = [("first", false), ("every-admitting", true)];

const FORMS: &str = "write a list of names, in which { any = [\"…\", \"…\"] } and { all = [\"…\"] } \
                     compose others";

/// The limits as one composition, by what decides each. After a problem it is not used.
pub(super) fn compose(
    field: Option<&FileValue<'_>>,
    limits: &[Entry],
    trees: Vec<Option<LimitTree>>,
    problems: &Problems,
) -> Option<LimitTree> {
    let (tree, order) = match field {
        Some(field) => named(field, limits, trees, problems)?,
        None => in_order(limits, trees)?,
    };
    let matchers: Vec<_> = order
        .iter()
        .map(|index| Arc::clone(&limits[*index].matcher))
        .collect();
    Some(match matchers.iter().all(|matcher| matcher.is_empty()) {
        true => tree,
        false => tree.select(Index::new(matchers)),
    })
}

/// All limits, in the order of the file.
fn in_order(
    limits: &[Entry],
    mut trees: Vec<Option<LimitTree>>,
) -> Option<(LimitTree, Vec<usize>)> {
    let mut order: Vec<usize> = (0..limits.len()).collect();
    order.sort_by_key(|index| limits[*index].span.start);
    let members = order.iter().map(|index| trees[*index].take());
    let mut members: Vec<LimitTree> = members.collect::<Option<_>>()?;
    let tree = match members.len() {
        0 => ().into_limit_tree(),
        1 => members.pop()?,
        _ => all(members),
    };
    Some((tree, order))
}

/// The limits as `compose` names them.
fn named(
    field: &FileValue<'_>,
    limits: &[Entry],
    trees: Vec<Option<LimitTree>>,
    problems: &Problems,
) -> Option<(LimitTree, Vec<usize>)> {
    let mut names = Names {
        indices: BTreeMap::new(),
        trees,
        order: Vec::new(),
        unknown: 0,
    };
    for (index, limit) in limits.iter().enumerate() {
        names.indices.entry(&limit.name).or_insert(index);
    }
    let tree = names.read(field).filter(|_| field.fits)?;
    for (index, Entry { owner, span, .. }) in limits.iter().enumerate() {
        if !names.order.contains(&index) {
            let message = format!(
                "{owner}: compose does not name it, so it would limit nothing; add it or remove it"
            );
            problems.add(Some(span.clone()), message);
        }
    }
    Some((tree, names.order))
}

struct Names<'e> {
    /// In an order, so that of names that are as near the same one is suggested each time.
    indices: BTreeMap<&'e str, usize>,
    /// `None` after a problem.
    trees: Vec<Option<LimitTree>>,
    /// The limits that are named, in the order of the composition.
    order: Vec<usize>,
    /// How many names no limit has.
    unknown: usize,
}

impl Names<'_> {
    fn read(&mut self, field: &FileValue<'_>) -> Option<LimitTree> {
        if let Some(name) = field.text() {
            return self.limit(field, name);
        }
        if field.value.is_array() {
            return self.members(field).map(all);
        }
        if let Some(members) = field.get("all") {
            return self.members(members).map(all);
        }
        let members = field.get("any")?;
        let trees = self.members(members)?;
        let every = field.at("charge").word(&CHARGES);
        if trees.len() > MAX_WAYS {
            let (name, count) = (&members.path, trees.len());
            members.problem_as(format_args!(
                "{name} has {count} members: an any has at most {MAX_WAYS}; nest it, or join limits"
            ));
        }
        let tree = any(trees);
        Some(match every {
            Some(true) => tree.charge_every_admitting(),
            _ => tree,
        })
    }

    fn members(&mut self, list: &FileValue<'_>) -> Option<Vec<LimitTree>> {
        let members: Vec<_> = list
            .children
            .iter()
            .map(|member| self.read(member))
            .collect();
        members.into_iter().collect()
    }

    fn limit(&mut self, field: &FileValue<'_>, name: &str) -> Option<LimitTree> {
        let Some(index) = self.indices.get(name).copied() else {
            self.unknown += 1;
            // Names are read in the file's order, and no more problems are shown: a suggestion
            // takes time.
            if self.unknown > RulesError::MAX_PROBLEMS {
                field.problem("no limit has this name");
                return None;
            }
            let known = || self.indices.keys().copied();
            let near = did_you_mean(name, known());
            let near = if near.is_empty() {
                format!("; there are {}", listed(known()))
            } else {
                near
            };
            field.problem(format_args!("no limit has this name{near}"));
            return None;
        };
        if self.order.contains(&index) {
            field.problem(
                "the limit is named twice; a request asks it once, so name it in one place",
            );
            return None;
        }
        self.order.push(index);
        Some(
            self.trees[index]
                .take()
                .unwrap_or_else(|| ().into_limit_tree()),
        )
    }
}
