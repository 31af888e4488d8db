//! The tree of a domain, and the way that a descriptor takes through it.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use throttle_core::Key;

use super::counters::Counters;
use super::rule::{Match, Rule};

/// Of the tree: a descriptor in a file, or a whole domain.
#[derive(Default)]
pub struct Node {
    /// Its key, and its value if it has one: `key_value`.
    pub name: String,
    pub rule: Option<Arc<Rule>>,
    pub children: BTreeMap<String, Node>,
    /// The names of children that have asterisks, in the order of the file.
    pub wildcards: Vec<String>,
    pub value_to_metric: bool,
    pub share_threshold: bool,
}

impl Node {
    /// The walk of envoyproxy/ratelimit: an entry a level, and only a limit at the last entry
    /// counts.
    pub fn find(&self, domain: &str, descriptor: &RateLimitDescriptor) -> Option<Match> {
        let (mut node, mut key) = (self, Key::builder());
        for entry in &descriptor.entries {
            node = node.child(entry)?;
            key = key.text(&entry.key).text(node.value(entry, true));
        }
        let rule = node.rule.as_ref()?;
        let counters = match &rule.counters {
            Some(counters) => Arc::clone(counters),
            None => Counters::with_values(&self.metric_name(domain, descriptor, rule)?),
        };
        Some(Match {
            rule: Arc::clone(rule),
            key: key.finish(),
            own: None,
            shown: rule.shown.clone(),
            counters,
        })
    }

    fn metric_name(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        rule: &Rule,
    ) -> Option<String> {
        let (mut node, mut name) = (self, domain.to_owned());
        for entry in &descriptor.entries {
            node = node.child(entry)?;
            let value = node.value(entry, rule.detailed_metric || node.value_to_metric);
            name = name + "." + &entry.key;
            if !value.is_empty() {
                name = name + "_" + value;
            }
        }
        Some(name)
    }

    /// The child of an entry: that of its key and value, the first whose asterisks match, or that
    /// of the key alone.
    fn child(&self, entry: &Entry) -> Option<&Node> {
        let whole = [&entry.key, "_", &entry.value].concat();
        let wildcard = || {
            let mut patterns = self.wildcards.iter();
            self.children
                .get(patterns.find(|pattern| matches(pattern, &whole))?)
        };
        let of_value = self.children.get(&whole).or_else(wildcard);
        of_value.or_else(|| self.children.get(&entry.key))
    }

    /// The value of an entry that has found this node: that of the request if it `is_own`, or that
    /// of the file.
    fn value<'a>(&'a self, entry: &'a Entry, is_own: bool) -> &'a str {
        if is_own && !self.share_threshold {
            return &entry.value;
        }
        self.name.get(entry.key.len() + 1..).unwrap_or_default()
    }
}

/// Whether a text is that of a pattern. Each asterisk stands for any letters, or none.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let last = parts.next_back().unwrap_or_default();
    let rest = text.strip_prefix(first);
    let rest = rest.and_then(|rest| rest.strip_suffix(last));
    rest.is_some_and(|mut rest| {
        parts.all(|part| match rest.split_once(part) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    })
}
