//! The tree of a domain, and the way that a descriptor takes through it.

use std::collections::HashMap;
use std::sync::Arc;

use super::rule::Rule;

/// Of the tree: a descriptor in a file, or a whole domain.
#[derive(Default)]
pub struct Node {
    pub rule: Option<Arc<Rule>>,
    pub children: HashMap<String, Node>,
    /// The children whose values have asterisks, in the order of the file.
    pub wildcards: Vec<Wildcard>,
    pub value_to_metric: bool,
    pub share_threshold: bool,
}

/// A child of a value with asterisks.
pub struct Wildcard {
    pub child: String,
    pub parts: Vec<String>,
}

/// How an entry of a request was found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By<'a> {
    Value,
    Wildcard(&'a str),
    Key,
}

impl Node {
    /// The child of an entry: that of its key and value, the first whose asterisks match, or that
    /// of the key alone.
    pub fn child(&self, key: &str, value: &str) -> Option<(&Node, By<'_>)> {
        let whole = format!("{key}_{value}");
        if let Some(child) = self.children.get(&whole) {
            return Some((child, By::Value));
        }
        let wildcard = self
            .wildcards
            .iter()
            .find(|wildcard| wildcard.matches(&whole));
        if let Some(Wildcard { child: pattern, .. }) = wildcard {
            let value = pattern.get(key.len() + 1..).unwrap_or_default();
            return Some((self.children.get(pattern)?, By::Wildcard(value)));
        }
        Some((self.children.get(key)?, By::Key))
    }
}

impl Wildcard {
    pub fn new(child: &str) -> Option<Self> {
        child.contains('*').then(|| Self {
            child: child.to_owned(),
            parts: child.split('*').map(str::to_owned).collect(),
        })
    }

    /// Each asterisk stands for any letters, or none.
    fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &self.parts[..] else {
            return false;
        };
        let rest = text.strip_prefix(&first[..]);
        let Some(mut rest) = rest.and_then(|rest| rest.strip_suffix(&last[..])) else {
            return false;
        };
        middle.iter().all(|part| {
            let found = rest.find(&part[..]);
            rest = found.map_or("", |at| &rest[at + part.len()..]);
            found.is_some()
        })
    }
}
