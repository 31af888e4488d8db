//! How the limits of a file are composed: `compose`. By default a request must be admitted by all.

use std::collections::BTreeMap;

use super::entry::Entry;
use super::file_value::FileValue;
use super::form::*;
use super::names::{did_you_mean, listed};
use super::problem::{Problems, RulesError};
use crate::limit::{IntoLimitTree, LimitTree, all, any};

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
    let Some(field) = field else {
        let mut in_order: Vec<_> = limits.iter().zip(trees).collect();
        in_order.sort_by_key(|(limit, _)| limit.span.start);
        let mut trees: Vec<LimitTree> = in_order
            .into_iter()
            .map(|(_, tree)| tree)
            .collect::<Option<_>>()?;
        return match trees.len() {
            0 => Some(().into_limit_tree()),
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
    let tree = names.read(field).filter(|_| field.fits)?;
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
        Some(
            self.trees[place]
                .take()
                .unwrap_or_else(|| ().into_limit_tree()),
        )
    }
}
