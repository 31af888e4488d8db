//! All domains of all files.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use throttle_core::{FixedWindow, Key, Policy, Rate};

use super::algorithm::AlgorithmName;
use super::file::{self, Descriptor, File};
use super::found::Found;
use super::node::{By, Node, Wildcard};
use super::read_error::ReadError;
use super::rule::{Limit, Rule, digest, policy};
use super::unit::Unit;

/// Policies for limits that descriptors bring, of each unit. Two descriptors of a request that
/// share one are decided one after the other.
const LANES: u64 = 16;

#[derive(Default)]
pub struct Config {
    domains: HashMap<String, Node>,
    policies: Vec<Policy>,
    rules: Vec<Arc<Rule>>,
    /// The policies of descriptors' own limits, by unit and lane.
    own: HashMap<(i32, u64), usize>,
    /// Whether every limit only watches.
    is_shadow: bool,
}

impl Config {
    pub fn new(is_shadow: bool) -> Self {
        let mut config = Self {
            is_shadow,
            ..Self::default()
        };
        for unit in (0..=7).filter_map(Unit::numbered) {
            for lane in 0..LANES {
                let window = FixedWindow::new(Rate::new(1, unit.period()));
                let name = format!("own limit, {}, {lane}", unit.name().to_ascii_lowercase());
                let policy = Policy::new(&name, window).expect("the name and the rate are valid");
                config
                    .own
                    .insert((unit.number(), lane), config.policies.len());
                config
                    .policies
                    .push(if is_shadow { policy.audit() } else { policy });
            }
        }
        config
    }

    /// Adds a file.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), ReadError> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            let (error, text) = (error.without_snippet(), error.without_snippet().to_string());
            // The place stands before it.
            let message = text
                .rsplit_once(" at line ")
                .map_or(&text[..], |(message, _)| message);
            ReadError::new(name, error.location(), message)
        })?;
        let domain = &file.domain.value;
        if domain.is_empty() {
            return Err(ReadError::new(
                name,
                file.domain.referenced,
                "the domain is empty; name it",
            ));
        }
        if self.domains.contains_key(domain) {
            let message = format!(
                "domain {domain:?} is in another file, too; write one file for each domain"
            );
            return Err(ReadError::new(name, file.domain.referenced, message));
        }
        let mut root = Node::default();
        let mut loading = Loading {
            file: name,
            config: self,
        };
        loading.load(&mut root, domain, file.descriptors.unwrap_or_default())?;
        self.domains.insert(domain.clone(), root);
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
    ) -> Result<Option<Found>, String> {
        let Some(root) = self.domains.get(domain) else {
            return Ok(None);
        };
        if descriptor.limit.is_some() {
            return self.own_limit(domain, descriptor).map(Some);
        }
        Ok(find_in(root, domain, descriptor))
    }

    fn own_limit(&self, domain: &str, descriptor: &RateLimitDescriptor) -> Result<Found, String> {
        let own = descriptor.limit.unwrap_or_default();
        let unit = Unit::numbered(own.unit).ok_or_else(|| {
            format!(
                "a descriptor's own limit has the unit {}: set one from second to year",
                own.unit
            )
        })?;
        let (mut key, mut keys, mut metric) = (
            Key::builder().text(domain),
            String::new(),
            domain.to_owned(),
        );
        for entry in &descriptor.entries {
            key = key.text(&entry.key).text(&entry.value);
            keys = keys + &entry.key + "|";
            metric = metric + "." + &entry.key;
        }
        let lane = digest((domain.to_owned() + "|" + &keys).as_bytes()) % LANES;
        let policy = self.own[&(unit.number(), lane)];
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
        Ok(Found {
            policy: Some(policy),
            key: key.finish(),
            under: Some(under),
            shown,
            rule: None,
            metric,
        })
    }
}

/// The walk of envoyproxy/ratelimit: an entry a level, and only a limit at the last entry counts.
fn find_in(root: &Node, domain: &str, descriptor: &RateLimitDescriptor) -> Option<Found> {
    let (mut node, mut key) = (root, Key::builder());
    let (mut metric, mut detailed) = (domain.to_owned(), domain.to_owned());
    for (index, entry) in descriptor.entries.iter().enumerate() {
        let (child, by) = node.child(&entry.key, &entry.value)?;
        let shared = match by {
            By::Wildcard(pattern) if child.share_threshold => Some(pattern),
            _ => None,
        };
        key = key.text(&entry.key).text(shared.unwrap_or(&entry.value));
        let value = match (shared, by) {
            (Some(pattern), _) => pattern,
            (None, By::Value) => &entry.value,
            _ if child.value_to_metric => &entry.value,
            (None, By::Wildcard(pattern)) => pattern,
            (None, By::Key) => "",
        };
        push_metric(&mut metric, &entry.key, value);
        push_metric(&mut detailed, &entry.key, shared.unwrap_or(&entry.value));
        if index + 1 < descriptor.entries.len() {
            node = child;
            continue;
        }
        let rule = Arc::clone(child.rule.as_ref()?);
        let metric = if rule.has_detailed_metric {
            detailed
        } else {
            metric
        };
        let limit = rule.limit.as_ref();
        return Some(Found {
            policy: limit.map(|limit| limit.index),
            key: key.finish(),
            under: None,
            shown: limit.map(|limit| limit.shown.clone()).unwrap_or_default(),
            rule: Some(rule),
            metric,
        });
    }
    None
}

fn push_metric(metric: &mut String, key: &str, value: &str) {
    metric.push('.');
    metric.push_str(key);
    if !value.is_empty() {
        metric.push('_');
        metric.push_str(value);
    }
}

/// Descriptors of a file on their way into a configuration.
struct Loading<'a> {
    file: &'a str,
    config: &'a mut Config,
}

impl Loading<'_> {
    fn load(
        &mut self,
        node: &mut Node,
        parent: &str,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), ReadError> {
        for mut descriptor in descriptors {
            let at = descriptor.key.referenced;
            let wrong = |message: String| Err(ReadError::new(self.file, at, message));
            if descriptor.key.value.is_empty() {
                return wrong("a descriptor's key is empty; name it".to_owned());
            }
            let mut child = descriptor.key.value.clone();
            if let Some(value) = descriptor
                .value
                .as_deref()
                .filter(|value| !value.is_empty())
            {
                child = child + "_" + value;
            }
            let full_key = format!("{parent}.{child}");
            if node.children.contains_key(&child) {
                return wrong(format!(
                    "descriptor {full_key:?} is there twice; remove one"
                ));
            }
            let wildcard = Wildcard::new(&child);
            if descriptor.share_threshold && wildcard.is_none() {
                return wrong(
                    "share_threshold needs a value with an asterisk; add one, or remove it"
                        .to_owned(),
                );
            }
            let nested = descriptor.descriptors.take().unwrap_or_default();
            let mut added = Node {
                value_to_metric: descriptor.value_to_metric,
                share_threshold: descriptor.share_threshold,
                rule: self.rule(&full_key, descriptor)?,
                ..Node::default()
            };
            self.load(&mut added, &full_key, nested)?;
            node.wildcards.extend(wildcard);
            node.children.insert(child, added);
        }
        Ok(())
    }

    fn rule(
        &mut self,
        full_key: &str,
        descriptor: Descriptor,
    ) -> Result<Option<Arc<Rule>>, ReadError> {
        let Some(rate_limit) = descriptor.rate_limit else {
            return Ok(None);
        };
        let (at, rate_limit) = (rate_limit.referenced, rate_limit.value);
        let is_shadow = descriptor.shadow_mode || self.config.is_shadow;
        let charges_refused = rate_limit.charge_refused;
        let limit = self.limit(full_key, is_shadow, &rate_limit, at)?;
        for replaced in &rate_limit.replaces {
            let wrong = match &replaced.name.value {
                name if name.is_empty() => "replaces has an empty name",
                name if *name == rate_limit.name => "a limit replaces itself",
                _ => continue,
            };
            let message = format!("{wrong}; write the name of another limit");
            return Err(ReadError::new(self.file, replaced.name.referenced, message));
        }
        let rule = Arc::new(Rule {
            full_key: full_key.to_owned(),
            name: rate_limit.name,
            replaces: rate_limit
                .replaces
                .into_iter()
                .map(|replaced| replaced.name.value)
                .collect(),
            limit,
            is_shadow,
            is_quota: descriptor.quota_mode,
            has_detailed_metric: descriptor.detailed_metric,
            charges_refused,
            metadata: descriptor.metadata,
        });
        self.config.rules.push(Arc::clone(&rule));
        Ok(Some(rule))
    }

    fn limit(
        &mut self,
        full_key: &str,
        is_shadow: bool,
        rate_limit: &file::RateLimit,
        at: serde_saphyr::Location,
    ) -> Result<Option<Limit>, ReadError> {
        let wrong = |at, message: String| Err(ReadError::new(self.file, at, message));
        let named = rate_limit
            .unit
            .as_ref()
            .filter(|unit| !unit.value.is_empty());
        let unit = match (named, rate_limit.unlimited) {
            (None, true) => return Ok(None),
            (Some(unit), true) => {
                return wrong(
                    unit.referenced,
                    "an unlimited descriptor has no unit; remove it".to_owned(),
                );
            }
            (None, false) => {
                return wrong(
                    at,
                    "unit is missing; write one from second to year".to_owned(),
                );
            }
            (Some(named), false) => match Unit::named(&named.value) {
                Some(unit) => unit,
                None => {
                    let message =
                        format!("unit is {:?}: write one from second to year", named.value);
                    return wrong(named.referenced, message);
                }
            },
        };
        let count = rate_limit.requests_per_unit;
        if rate_limit.charge_refused && rate_limit.algorithm.slides() {
            let remedy = "remove it, or choose another algorithm";
            return wrong(
                at,
                format!("charge_refused cannot be had with a sliding one; {remedy}"),
            );
        }
        let algorithm = match count {
            0 => AlgorithmName::FixedWindow.build(1, unit, None),
            count => rate_limit
                .algorithm
                .build(u64::from(count), unit, rate_limit.burst),
        };
        let policy = algorithm.and_then(|algorithm| {
            policy(full_key, algorithm, is_shadow).map_err(|error| error.to_string())
        });
        let policy = match policy {
            Ok(policy) => policy,
            Err(message) => return wrong(at, message),
        };
        let shown = RateLimit {
            name: rate_limit.name.clone(),
            requests_per_unit: count,
            unit: unit.number(),
        };
        let index = self.config.policies.len();
        self.config.policies.push(policy.clone());
        Ok(Some(Limit {
            index,
            policy,
            shown,
        }))
    }
}
