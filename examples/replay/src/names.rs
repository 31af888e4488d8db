//! What a rule file calls by names that a program registers. Here there is no program: the names
//! are taken from the file, so that the rest of it can be checked.

use std::collections::BTreeSet;
use std::future::ready;

use throttle_rules::Registry;
use throttle_tower::Key;
use throttle_tower::extract::from_fn;
use toml::{Table, Value};

/// The sections that list limits.
pub const SECTIONS: [&str; 3] = ["limit", "plans", "concurrency"];

/// Names that are built in.
const KEYS: [&str; 4] = ["client-ip", "constant", "method", "route"];
const CONDITIONS: [&str; 1] = ["preflight"];
const REFUNDS: [&str; 4] = ["successful", "failed", "server-errors", "aborted"];

/// Registered names, by what they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names {
    keys: BTreeSet<String>,
    keys_of_futures: BTreeSet<String>,
    costs: BTreeSet<String>,
    classes: BTreeSet<String>,
    conditions: BTreeSet<String>,
    lookups: BTreeSet<String>,
    refunds: BTreeSet<String>,
}

impl Names {
    /// The names in a file, or none if it is not TOML.
    pub fn of_file(text: &str) -> Self {
        let file: Table = text.parse().unwrap_or_default();
        let mut names = Self::default();
        names.conditions.extend(conditions(file.get("when")));
        for limit in SECTIONS.iter().flat_map(|section| limits(&file, section)) {
            names.add(limit);
        }
        names
    }

    /// The names in a limit.
    pub fn of_limit(limit: &Table) -> Self {
        let mut names = Self::default();
        names.add(limit);
        names
    }

    fn add(&mut self, limit: &Table) {
        let keys = limit.get("by").map(keys).unwrap_or_default();
        let of_future = field(limit, "key-deadline").is_some();
        if of_future {
            &mut self.keys_of_futures
        } else {
            &mut self.keys
        }
        .extend(keys);
        self.costs
            .extend(limit.get("cost").and_then(Value::as_str).map(str::to_owned));
        self.classes.extend(
            limit
                .get("classes")
                .and_then(Value::as_str)
                .map(str::to_owned),
        );
        self.conditions.extend(conditions(limit.get("when")));
        self.lookups.extend(
            limit
                .get("lookup")
                .and_then(Value::as_str)
                .map(str::to_owned),
        );
        self.refunds.extend(
            texts(limit.get("refund"))
                .into_iter()
                .filter(|name| !REFUNDS.contains(&&**name)),
        );
    }

    /// These names without keys and costs that are registered otherwise.
    pub fn without(mut self, fields: &[String], more: impl Iterator<Item = String>) -> Self {
        let others: BTreeSet<String> = fields.iter().cloned().chain(more).collect();
        for names in [&mut self.keys, &mut self.keys_of_futures, &mut self.costs] {
            names.retain(|name| !others.contains(name));
        }
        self
    }

    pub fn has_cost(&self, name: &str) -> bool {
        self.costs.contains(name)
    }

    /// A registry that has all these names, and means nothing by them.
    pub fn registry(&self) -> Registry {
        let no_key = || from_fn(|_| None::<Key>);
        let registry = self.keys.iter().fold(Registry::new(), |registry, name| {
            registry.key(name, no_key())
        });
        let of_futures = self
            .keys_of_futures
            .iter()
            .filter(|name| !self.keys.contains(*name));
        let registry = of_futures.fold(registry, |registry, name| {
            registry.key_async(name, |_| ready(None::<Key>))
        });
        let registry = self
            .costs
            .iter()
            .fold(registry, |registry, name| registry.cost(name, |_| 1));
        let registry = self
            .classes
            .iter()
            .fold(registry, |registry, name| registry.classes(name, |_| ""));
        let registry = self.conditions.iter().fold(registry, |registry, name| {
            registry.condition(name, |_| false)
        });
        let lookup =
            |registry: Registry, name: &String| registry.lookup(name, |_| ready(None::<&str>));
        let registry = self.lookups.iter().fold(registry, lookup);
        self.refunds.iter().fold(registry, |registry, name| {
            registry.refund(name, |_, _| false)
        })
    }

    /// The names as a list for people, such as `key "api-key"`, without those that are `known`.
    pub fn listed(&self, known: &[String]) -> Vec<String> {
        let all = [
            ("key", &self.keys),
            ("key", &self.keys_of_futures),
            ("cost", &self.costs),
            ("classes", &self.classes),
            ("condition", &self.conditions),
            ("lookup", &self.lookups),
            ("refund", &self.refunds),
        ];
        let list = |(what, names): (&'static str, &BTreeSet<String>)| {
            let unknown = names
                .iter()
                .filter(|name| !matches!(what, "key" | "cost") || !known.contains(name));
            unknown
                .map(|name| format!("{what} {name:?}"))
                .collect::<Vec<_>>()
        };
        all.into_iter().flat_map(list).collect()
    }
}

/// The limits of a section.
pub fn limits<'f>(file: &'f Table, section: &str) -> impl Iterator<Item = &'f Table> {
    file.get(section)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_table)
}

/// A field, in whose name `-` and `_` are the same.
pub fn field<'t>(table: &'t Table, name: &str) -> Option<&'t Value> {
    table
        .get(name)
        .or_else(|| table.get(&name.replace('-', "_")))
}

/// Whether a field of the log stands for a name. Case does not matter in the names of headers.
pub fn is_named(field: &str, name: &str) -> bool {
    field == name || (name.starts_with("header:") && field.eq_ignore_ascii_case(name))
}

/// The registered names in a key.
fn keys(by: &Value) -> Vec<String> {
    match by {
        Value::String(name) if name.starts_with("header:") || KEYS.contains(&&**name) => Vec::new(),
        Value::String(name) => vec![name.clone()],
        Value::Array(parts) => parts.iter().flat_map(keys).collect(),
        Value::Table(table) => field(table, "first-of").map(keys).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The registered conditions: a name, `{ not = "…" }` or a list.
fn conditions(when: Option<&Value>) -> Vec<String> {
    let all = match when {
        Some(Value::Table(table)) => texts(table.get("not")),
        Some(Value::Array(list)) => list.iter().flat_map(|one| conditions(Some(one))).collect(),
        other => texts(other),
    };
    all.into_iter()
        .filter(|name| !CONDITIONS.contains(&&**name))
        .collect()
}

/// A text, or those of a list.
fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use throttle_rules::Rules;

    use super::*;

    const FILE: &str = r#"
        version = 1
        when = { not = "internal" }
        [[limit]]
        name = "a"
        gcra = { rate = "1/second" }
        by = [{ first_of = ["api-key", "client-ip"] }, "header:x-a"]
        cost = "tokens"
        when = ["write", "preflight"]
        refund = ["successful", "ours"]
        [[limit]]
        name = "b"
        gcra = { rate = "1/second" }
        by = "session"
        key_deadline = "2s"
        classes = "importance"
        reserve = { high = 0 }
        [[plans]]
        name = "c"
        by = "constant"
        lookup = "plan-of"
        unknown = "free"
        tiers = { free = { gcra = { rate = "1/second" } } }"#;

    #[test]
    fn registered_names_are_found_where_a_file_has_them() {
        let names = Names::of_file(FILE);
        let listed = names.listed(&["tokens".to_owned()]);
        let expected = [
            "key \"api-key\"",
            "key \"session\"",
            "classes \"importance\"",
            "condition \"internal\"",
            "condition \"write\"",
            "lookup \"plan-of\"",
            "refund \"ours\"",
        ];
        assert_eq!(listed, expected);
        Rules::from_str("throttle.toml", FILE, names.registry()).unwrap();
    }

    #[test]
    fn files_of_the_project_need_no_other_names() {
        let text = include_str!("../../rules/throttle.toml");
        Rules::from_str("throttle.toml", text, Names::of_file(text).registry()).unwrap();
    }
}
