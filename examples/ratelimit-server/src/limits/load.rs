//! From a file to the rules of a configuration.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use serde_saphyr::{Location, Spanned};

use super::algorithm::AlgorithmName;
use super::config::Config;
use super::counters::Counters;
use super::file::{self, Descriptor};
use super::node::{Node, Wildcard};
use super::read_error::ReadError;
use super::rule::{Limit, MetricName, Rule, policy};
use super::unit::Unit;

impl Config {
    /// Adds descriptors below a node. `parent` is its full key. `has_values`: its name in metrics
    /// holds values of requests.
    pub(super) fn load(
        &mut self,
        node: &mut Node,
        parent: &str,
        has_values: bool,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), ReadError> {
        for mut descriptor in descriptors {
            let at = descriptor.key.referenced;
            let key = &descriptor.key.value;
            ReadError::when(key.is_empty(), at, "a descriptor's key is empty; name it")?;
            let child = match descriptor.value.as_deref() {
                None | Some("") => key.clone(),
                Some(value) => format!("{key}_{value}"),
            };
            let full_key = format!("{parent}.{child}");
            let twice = format!("descriptor {full_key:?} is there twice; remove one");
            ReadError::when(node.children.contains_key(&child), at, twice)?;
            let wildcard = Wildcard::new(&child);
            let shares_nothing = descriptor.share_threshold && wildcard.is_none();
            let message = "share_threshold needs a value with an asterisk; add one, or remove it";
            ReadError::when(shares_nothing, at, message)?;

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
        let Some(Spanned {
            value: rate_limit,
            referenced: at,
            ..
        }) = descriptor.rate_limit
        else {
            return Ok(None);
        };
        let is_shadow = descriptor.shadow_mode || self.is_shadow;
        let limit = self.limit(full_key, is_shadow, &rate_limit, at)?;
        for Spanned {
            value: name,
            referenced: at,
            ..
        } in rate_limit.replaces.iter().map(|replaced| &replaced.name)
        {
            let message = "replaces has an empty name; write the name of another limit";
            ReadError::when(name.is_empty(), *at, message)?;
            let message = "a limit replaces itself; write the name of another limit";
            ReadError::when(*name == rate_limit.name, *at, message)?;
        }
        let replaces = rate_limit.replaces.into_iter();
        let rule = Arc::new(Rule {
            full_key: full_key.to_owned(),
            name: rate_limit.name,
            replaces: replaces.map(|replaced| replaced.name.value).collect(),
            limit,
            is_shadow,
            is_quota: descriptor.quota_mode,
            metric: match (descriptor.detailed_metric, has_values) {
                (true, _) => MetricName::AllValues,
                (false, true) => MetricName::SomeValues,
                (false, false) => MetricName::FullKey(Arc::new(Counters::new(full_key))),
            },
            charges_refused: rate_limit.charge_refused,
            metadata: descriptor.metadata,
        });
        self.rules.push(Arc::clone(&rule));
        Ok(Some(rule))
    }

    fn limit(
        &mut self,
        full_key: &str,
        is_shadow: bool,
        rate_limit: &file::RateLimit,
        at: Location,
    ) -> Result<Option<Limit>, ReadError> {
        let named = rate_limit.unit.as_ref();
        let named = named.filter(|unit| !unit.value.is_empty());
        if rate_limit.unlimited {
            let message = "an unlimited descriptor has no unit; remove it";
            return match named {
                Some(unit) => Err(ReadError::new(unit.referenced, message)),
                None => Ok(None),
            };
        }
        let Some(named) = named else {
            let message = "unit is missing; write one from second to year";
            return Err(ReadError::new(at, message));
        };
        let unit = Unit::named(&named.value).ok_or_else(|| {
            let message = format!("unit is {:?}: write one from second to year", named.value);
            ReadError::new(named.referenced, message)
        })?;
        let cannot_charge = rate_limit.charge_refused && rate_limit.algorithm.slides();
        let message = "charge_refused cannot be had with a sliding one; remove it, or choose \
            another algorithm";
        ReadError::when(cannot_charge, at, message)?;

        let algorithm = match rate_limit.requests_per_unit {
            0 => AlgorithmName::FixedWindow.build(1, unit, None),
            count => rate_limit
                .algorithm
                .build(u64::from(count), unit, rate_limit.burst),
        };
        let policy = algorithm
            .and_then(|algorithm| policy(full_key, algorithm, is_shadow).map_err(|e| e.to_string()))
            .map_err(|message| ReadError::new(at, message))?;
        let index = self.policies.len();
        self.policies.push(policy.clone());
        Ok(Some(Limit {
            index,
            policy,
            shown: RateLimit {
                name: rate_limit.name.clone(),
                requests_per_unit: rate_limit.requests_per_unit,
                unit: unit.number(),
            },
        }))
    }
}
