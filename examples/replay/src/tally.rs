//! What the limits of a file have decided about a log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use throttle_rules::RulesError;

use crate::entry::Entry;
use crate::rule_file::{Limit, RuleFile};
use crate::run::{Decided, Run};

/// Counts of one file.
#[derive(Debug, Default)]
pub struct Tally {
    pub refused: u64,
    /// Refused for want of a key.
    pub lacking_key: u64,
    pub overflow: u64,
    pub limits: Vec<LimitTally>,
}

#[derive(Debug, Default)]
pub struct LimitTally {
    pub name: String,
    /// Requests to which the limit applied, and those of them that it alone would have refused.
    pub asked: u64,
    pub refused: u64,
    /// Refused requests by key. A key that was never refused is not in it.
    pub keys: HashMap<Box<str>, u64>,
    /// Those of them of which a request was refused in fact: an audited limit refuses none, and
    /// an `any` admits what one of its limits admits.
    refused_keys: HashSet<Box<str>>,
}

/// Keys of requests that have none.
const NO_KEY: &str = "(no key)";

impl Tally {
    fn new(limits: &[Limit]) -> Self {
        let limit = |limit: &Limit| LimitTally {
            name: limit.name.clone(),
            ..LimitTally::default()
        };
        Self {
            limits: limits.iter().map(limit).collect(),
            ..Self::default()
        }
    }

    fn add(
        &mut self,
        decided: &Decided,
        limits: &[Limit],
        entry: &Entry,
        route: Option<&str>,
        label: &mut String,
    ) {
        self.refused += u64::from(decided.is_refused);
        self.lacking_key += u64::from(decided.lacks_key);
        self.overflow += u64::from(decided.is_overflow);
        // The layer asks no limit about a request that lacks a required key.
        let lacking = limits.iter().position(|limit| {
            let lacks = |limit: &Limit| !limit.by.write(entry, route, &mut String::new());
            decided.lacks_key && !limit.is_skipped && lacks(limit)
        });
        let each = self.limits.iter_mut().zip(limits).zip(&decided.limits);
        for (place, ((tally, limit), refuses)) in each.enumerate() {
            let is_lacking = lacking == Some(place);
            let Some(refuses) = refuses.or(is_lacking.then_some(true)) else {
                continue;
            };
            tally.asked += 1;
            if refuses {
                tally.refused += 1;
                label.clear();
                if !limit.by.write(entry, route, label) {
                    label.push_str(NO_KEY);
                }
                match tally.keys.get_mut(label.as_str()) {
                    Some(count) => *count += 1,
                    None => _ = tally.keys.insert(label.as_str().into(), 1),
                }
                if decided.is_refused && !tally.refused_keys.contains(label.as_str()) {
                    tally.refused_keys.insert(label.as_str().into());
                }
            }
        }
    }

    /// Keys that were refused, counted for each limit.
    pub fn refused_keys(&self) -> u64 {
        self.limits
            .iter()
            .map(|limit| limit.refused_keys.len() as u64)
            .sum()
    }

    /// Keys that this file refuses and another does not: a key of a limit of another name is
    /// another key.
    pub fn keys_beside<'t>(
        &'t self,
        other: &'t Self,
    ) -> impl Iterator<Item = (&'t str, &'t str, u64)> {
        self.limits.iter().flat_map(|limit| {
            let others = other.limits.iter().find(|other| other.name == limit.name);
            let is_other =
                move |key: &str| others.is_some_and(|other| other.refused_keys.contains(key));
            let keys = limit.refused_keys.iter().filter(move |key| !is_other(key));
            keys.map(|key| (limit.name.as_str(), &**key, limit.keys[key]))
        })
    }
}

impl LimitTally {
    /// The keys that were refused most, those of the same count by their names.
    pub fn top(&self, most: usize) -> Vec<(&str, u64)> {
        top(self.keys.iter().map(|(key, count)| (&**key, *count)), most)
    }
}

pub fn top<T: Ord>(counted: impl Iterator<Item = (T, u64)>, most: usize) -> Vec<(T, u64)> {
    let mut counted: Vec<_> = counted.collect();
    counted.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    counted.truncate(most);
    counted
}

/// A file at work on a log, and what it has decided.
pub struct Tallied<'f> {
    file: &'f RuleFile,
    run: Run,
    pub tally: Tally,
    label: String,
}

impl<'f> Tallied<'f> {
    /// # Errors
    ///
    /// If the limits cannot be built.
    pub fn new(file: &'f RuleFile) -> Result<Self, RulesError> {
        Ok(Self {
            file,
            run: Run::new(file)?,
            tally: Tally::new(&file.limits),
            label: String::new(),
        })
    }

    /// Decides a request, and counts it. Returns whether it is refused.
    pub fn decide(&mut self, at: i64, entry: &Entry) -> bool {
        let route: Option<Arc<str>> = self.file.routes.route(entry);
        let decided = self.run.decide(at, entry, route.as_ref());
        self.tally.add(
            decided,
            &self.file.limits,
            entry,
            route.as_deref(),
            &mut self.label,
        );
        decided.is_refused
    }
}
