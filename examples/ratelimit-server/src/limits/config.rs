//! All domains of all files.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use throttle_core::{FixedWindow, Key, Policy, Rate};

use super::counters::Counters;
use super::file::File;
use super::matched::Match;
use super::node::{By, Node};
use super::read_error::ReadError;
use super::rule::{Limit, MetricName, Rule};
use super::unit::Unit;

#[derive(Default)]
pub struct Config {
    domains: HashMap<String, Node>,
    pub(super) policies: Vec<Policy>,
    pub(super) rules: Vec<Arc<Rule>>,
    /// The policies of descriptors' own limits, by unit.
    own: HashMap<i32, usize>,
    /// Whether every limit only watches.
    pub(super) is_shadow: bool,
}

impl Config {
    pub fn new(is_shadow: bool) -> Self {
        let mut config = Self {
            is_shadow,
            ..Self::default()
        };
        for unit in (0..=7).filter_map(Unit::numbered) {
            let window = FixedWindow::new(Rate::new(1, unit.period()));
            let name = format!("own limit, {}", unit.name().to_ascii_lowercase());
            let policy = Policy::new(&name, window).expect("the name and the rate are valid");
            config.own.insert(unit.number(), config.policies.len());
            config
                .policies
                .push(if is_shadow { policy.audit() } else { policy });
        }
        config
    }

    /// Adds a file.
    pub fn add(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        self.read(text).map_err(|error| error.in_file(name))
    }

    fn read(&mut self, text: &str) -> Result<(), ReadError> {
        let file: File = serde_saphyr::from_str(text)?;
        let (domain, at) = (file.domain.value, file.domain.referenced);
        ReadError::when(domain.is_empty(), at, "the domain is empty; name it")?;
        let twice =
            format!("domain {domain:?} is in another file, too; write one file for each domain");
        ReadError::when(self.domains.contains_key(&domain), at, twice)?;
        let mut root = Node::default();
        self.load(
            &mut root,
            &domain,
            false,
            file.descriptors.unwrap_or_default(),
        )?;
        self.domains.insert(domain, root);
        Ok(())
    }

    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// The rules in force, one a line.
    pub fn dump(&self) -> String {
        let mut lines: Vec<String> = self
            .rules
            .iter()
            .map(|rule| {
                let mut line = format!("{}: ", rule.full_key);
                match &rule.limit {
                    None => line.push_str("unlimited"),
                    Some(Limit { shown, policy, .. }) => {
                        let unit = Unit::numbered(shown.unit).map_or("", Unit::name);
                        let algorithm = policy.algorithm().name();
                        // Writing to a text does not fail.
                        let _ = write!(
                            line,
                            "unit={unit} requests_per_unit={} algorithm={algorithm}",
                            shown.requests_per_unit
                        );
                    }
                }
                let _ = write!(
                    line,
                    " shadow_mode={} quota_mode={}",
                    rule.is_shadow, rule.is_quota
                );
                line
            })
            .collect();
        lines.sort_unstable();
        lines.push(String::new());
        lines.join("\n")
    }

    /// What a descriptor is limited by; `None` if by nothing.
    pub fn find(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Option<Match>, String> {
        let Some(root) = self.domains.get(domain) else {
            return Ok(None);
        };
        if descriptor.limit.is_some() {
            return self.own_limit(domain, descriptor).map(Some);
        }
        Ok(find_in(root, domain, descriptor))
    }

    fn own_limit(&self, domain: &str, descriptor: &RateLimitDescriptor) -> Result<Match, String> {
        let own = descriptor.limit.unwrap_or_default();
        let unit = Unit::numbered(own.unit).ok_or_else(|| {
            format!(
                "a descriptor's own limit has the unit {}: set one from second to year",
                own.unit
            )
        })?;
        let mut key = Key::builder().text(domain);
        let mut metric = domain.to_owned();
        for entry in &descriptor.entries {
            key = key.text(&entry.key).text(&entry.value);
            metric = metric + "." + &entry.key;
        }
        let policy = self.own[&unit.number()];
        let window = FixedWindow::new(Rate::new(
            u64::from(own.requests_per_unit).max(1),
            unit.period(),
        ));
        let under = self.policies[policy]
            .own(window)
            .map_err(|error| error.to_string())?;
        let shown = RateLimit {
            name: String::new(),
            requests_per_unit: own.requests_per_unit,
            unit: unit.number(),
        };
        Ok(Match {
            policy: Some(policy),
            key: key.finish(),
            under: Some(under),
            shown,
            rule: None,
            counters: Counters::with_values(&metric),
        })
    }
}

/// The walk of envoyproxy/ratelimit: an entry a level, and only a limit at the last entry counts.
fn find_in(root: &Node, domain: &str, descriptor: &RateLimitDescriptor) -> Option<Match> {
    let (mut node, mut key) = (root, Key::builder());
    for entry in &descriptor.entries {
        let (child, by) = node.child(&entry.key, &entry.value)?;
        let value = match by {
            By::Wildcard(pattern) if child.share_threshold => pattern,
            _ => &entry.value,
        };
        key = key.text(&entry.key).text(value);
        node = child;
    }
    let rule = node.rule.as_ref()?;
    let counters = match &rule.metric {
        MetricName::FullKey(counters) => Arc::clone(counters),
        MetricName::SomeValues => {
            Counters::with_values(&metric_name(root, domain, descriptor, false)?)
        }
        MetricName::AllValues => {
            Counters::with_values(&metric_name(root, domain, descriptor, true)?)
        }
    };
    let limit = rule.limit.as_ref();
    Some(Match {
        policy: limit.map(|limit| limit.index),
        key: key.finish(),
        under: None,
        shown: limit.map(|limit| limit.shown.clone()).unwrap_or_default(),
        rule: Some(Arc::clone(rule)),
        counters,
    })
}

fn metric_name(
    root: &Node,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    has_all_values: bool,
) -> Option<String> {
    let (mut node, mut name) = (root, domain.to_owned());
    for entry in &descriptor.entries {
        let (child, by) = node.child(&entry.key, &entry.value)?;
        let value = match by {
            By::Wildcard(pattern) if child.share_threshold => pattern,
            _ if has_all_values || child.value_to_metric => &entry.value,
            By::Value => &entry.value,
            By::Wildcard(pattern) => pattern,
            By::Key => "",
        };
        name = name + "." + &entry.key;
        if !value.is_empty() {
            name = name + "_" + value;
        }
        node = child;
    }
    Some(name)
}
