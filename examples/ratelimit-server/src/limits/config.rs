//! All domains of all files.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use throttle_core::{Key, Policy};

use super::algorithm::AlgorithmName;
use super::counters::Counters;
use super::node::Node;
use super::rule::{Match, Rule};
use super::unit::Unit;

#[derive(Default)]
pub struct Config {
    pub domains: BTreeMap<String, Node>,
    pub policies: Vec<Policy>,
    /// The first policy of each name.
    pub(super) names: HashMap<String, usize>,
    /// The rules of files.
    pub(super) rules: Vec<Arc<Rule>>,
    /// The rules of descriptors' own limits, by unit.
    own: BTreeMap<i32, Arc<Rule>>,
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
            let name = format!("own limit, {}", unit.name().to_ascii_lowercase());
            let window = AlgorithmName::FixedWindow.build(1, unit, None);
            let policy = window.and_then(|window| config.add_policy(&name, window, is_shadow));
            let rule = Rule {
                policy: Some(policy.expect("the name and the rate are valid")),
                is_shadow,
                ..Rule::default()
            };
            config.own.insert(unit.number(), Arc::new(rule));
        }
        config
    }

    /// The rules in force, one a line.
    pub fn dump(&self) -> String {
        let line = |rule: &Arc<Rule>| {
            let limit = rule.policy.map_or("unlimited".to_owned(), |policy| {
                format!(
                    "unit={} requests_per_unit={} algorithm={}",
                    rule.shown.unit().as_str_name(),
                    rule.shown.requests_per_unit,
                    self.policies[policy].algorithm().name(),
                )
            });
            let (watches, is_quota) = (rule.is_shadow, rule.is_quota);
            let full_key = &rule.full_key;
            format!("{full_key}: {limit} shadow_mode={watches} quota_mode={is_quota}\n")
        };
        let mut lines: Vec<_> = self.rules.iter().map(line).collect();
        lines.sort_unstable();
        lines.concat()
    }

    /// What a descriptor is limited by; `None` if by nothing.
    pub fn find(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Option<Match>, String> {
        match (self.domains.get(domain), &descriptor.limit) {
            (None, _) => Ok(None),
            (Some(root), None) => Ok(root.find(domain, descriptor)),
            (Some(_), Some(own)) => self.own_limit(domain, descriptor, own).map(Some),
        }
    }

    fn own_limit(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        own: &RateLimitOverride,
    ) -> Result<Match, String> {
        let unit = own.unit;
        let (unit, rule) = Unit::numbered(unit)
            .zip(self.own.get(&unit))
            .ok_or_else(|| {
                format!("a descriptor's own limit has the unit {unit}: set one from second to year")
            })?;
        let (mut key, mut metric) = (Key::builder().text(domain), domain.to_owned());
        for entry in &descriptor.entries {
            key = key.text(&entry.key).text(&entry.value);
            metric = metric + "." + &entry.key;
        }
        let count = u64::from(own.requests_per_unit).max(1);
        let window = AlgorithmName::FixedWindow.build(count, unit, None)?;
        Ok(Match {
            rule: Arc::clone(rule),
            key: key.finish(),
            own: Some(Arc::new(window)),
            shown: RateLimit {
                requests_per_unit: own.requests_per_unit,
                unit: own.unit,
                name: String::new(),
            },
            counters: Counters::with_values(&metric),
        })
    }
}
