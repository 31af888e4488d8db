//! From a file to the rules of a configuration.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;

use super::algorithm::AlgorithmName;
use super::config::Config;
use super::counters::Counters;
use super::file::{self, Descriptor};
use super::node::{Node, Wildcard};
use super::read_error::ReadError;
use super::rule::{Limit, MetricName, Rule, policy};
use super::unit::Unit;

/// Descriptors of a file on their way into a configuration.
pub struct Loader<'a> {
    file: &'a str,
    config: &'a mut Config,
}

impl<'a> Loader<'a> {
    pub fn new(file: &'a str, config: &'a mut Config) -> Self {
        Self { file, config }
    }

    /// Adds descriptors below a node. `parent` is its full key. `has_values`: its name in metrics
    /// holds values of requests.
    pub fn load(
        &mut self,
        node: &mut Node,
        parent: &str,
        has_values: bool,
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
            let has_values = has_values || descriptor.value_to_metric;
            let mut added = Node {
                value_to_metric: descriptor.value_to_metric,
                share_threshold: descriptor.share_threshold,
                rule: self.rule(&full_key, has_values, descriptor)?,
                ..Node::default()
            };
            self.load(&mut added, &full_key, has_values, nested)?;
            node.wildcards.extend(wildcard);
            node.children.insert(child, added);
        }
        Ok(())
    }

    fn rule(
        &mut self,
        full_key: &str,
        has_values: bool,
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
            metric: match (descriptor.detailed_metric, has_values) {
                (true, _) => MetricName::AllValues,
                (false, true) => MetricName::SomeValues,
                (false, false) => MetricName::FullKey(Arc::new(Counters::new(full_key))),
            },
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
