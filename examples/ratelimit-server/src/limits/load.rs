//! From a file to the rules of a configuration.

use std::sync::Arc;

use serde_saphyr::{Error, Location};
use throttle_core::{Algorithm, Policy};

use super::algorithm::AlgorithmName;
use super::config::Config;
use super::counters::Counters;
use super::file::{self, Descriptor, File, wrong};
use super::node::Node;
use super::rule::Rule;
use super::unit::Unit;

impl Config {
    /// Adds a file.
    pub fn add(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        self.read(text).map_err(|error| file::in_file(name, &error))
    }

    fn read(&mut self, text: &str) -> Result<(), Error> {
        let file: File = serde_saphyr::from_str(text)?;
        let (domain, at) = (file.domain.value, file.domain.referenced);
        check(!domain.is_empty(), at, "the domain is empty; name it")?;
        let remedy = "is in another file, too; write one file for each domain";
        let is_new = !self.domains.contains_key(&domain);
        check(is_new, at, format!("domain {domain:?} {remedy}"))?;
        let mut root = Node::default();
        let descriptors = file.descriptors.unwrap_or_default();
        self.load(&mut root, &domain, false, descriptors)?;
        self.domains.insert(domain, root);
        Ok(())
    }

    /// Adds descriptors below a node. `parent` is its full key. `has_values`: its name in metrics
    /// holds values of requests.
    fn load(
        &mut self,
        node: &mut Node,
        parent: &str,
        has_values: bool,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), Error> {
        for mut descriptor in descriptors {
            let (key, at) = (&descriptor.key.value, descriptor.key.referenced);
            let name = match descriptor.value.as_deref() {
                None | Some("") => key.clone(),
                Some(value) => format!("{key}_{value}"),
            };
            let full_key = format!("{parent}.{name}");
            check(!key.is_empty(), at, "a descriptor's key is empty; name it")?;
            let twice = format!("descriptor {full_key:?} is there twice; remove one");
            check(!node.children.contains_key(&name), at, twice)?;
            let shares_what = "share_threshold needs a value with an asterisk; add or remove it";
            if name.contains('*') {
                node.wildcards.push(name.clone());
            } else {
                check(!descriptor.share_threshold, at, shares_what)?;
            }
            let nested = descriptor.descriptors.take().unwrap_or_default();
            let has_values = has_values || descriptor.value_to_metric;
            let mut child = Node {
                name: name.clone(),
                value_to_metric: descriptor.value_to_metric,
                share_threshold: descriptor.share_threshold,
                rule: self.rule(&full_key, has_values, descriptor)?,
                ..Node::default()
            };
            self.load(&mut child, &full_key, has_values, nested)?;
            node.children.insert(name, child);
        }
        Ok(())
    }

    fn rule(
        &mut self,
        full_key: &str,
        has_values: bool,
        descriptor: Descriptor,
    ) -> Result<Option<Arc<Rule>>, Error> {
        let Some(rate_limit) = descriptor.rate_limit else {
            return Ok(None);
        };
        let (rate_limit, at) = (rate_limit.value, rate_limit.referenced);
        let mut rule = Rule {
            full_key: full_key.to_owned(),
            is_shadow: descriptor.shadow_mode || self.is_shadow,
            is_quota: descriptor.quota_mode,
            charges_refused: rate_limit.charge_refused && rate_limit.requests_per_unit > 0,
            detailed_metric: descriptor.detailed_metric,
            metadata: descriptor.metadata,
            ..Rule::default()
        };
        if let Some((unit, algorithm)) = algorithm(&rate_limit, at)? {
            let policy = self.add_policy(full_key, algorithm, rule.is_shadow);
            rule.policy = Some(policy.map_err(|message| wrong(at, message))?);
            rule.shown.requests_per_unit = rate_limit.requests_per_unit;
            rule.shown.unit = unit.number();
        }
        if !(has_values || rule.detailed_metric) {
            rule.counters = Some(Arc::new(Counters::new(full_key)));
        }
        rule.shown.name = rate_limit.name;
        for replaced in rate_limit.replaces {
            let (name, at) = (replaced.name.value, replaced.name.referenced);
            let message = "replaces has an empty name; write the name of another limit";
            check(!name.is_empty(), at, message)?;
            let message = "a limit replaces itself; write the name of another limit";
            check(name != rule.shown.name, at, message)?;
            rule.replaces.push(name);
        }
        let rule = Arc::new(rule);
        self.rules.push(Arc::clone(&rule));
        Ok(Some(rule))
    }

    /// Adds a policy of the name that fits, audited if it only watches, and returns its index.
    pub(super) fn add_policy(
        &mut self,
        full_key: &str,
        algorithm: Algorithm,
        is_shadow: bool,
    ) -> Result<usize, String> {
        let policy = Policy::new(&policy_name(full_key), algorithm);
        let policy = policy.map_err(|error| error.to_string())?;
        let policy = if is_shadow { policy.audit() } else { policy };
        let name = policy.name().to_owned();
        let first = *self.names.entry(name).or_insert(self.policies.len());
        let other = self.policies.get(first);
        // No request could ask for both.
        if other.is_some_and(|other| *other != policy) {
            let remedy = "is another descriptor's path, too, with another limit; rename a key";
            return Err(format!("{full_key:?} {remedy}"));
        }
        self.policies.push(policy);
        Ok(self.policies.len() - 1)
    }
}

/// What a limit admits; `None` for an unlimited one.
fn algorithm(
    rate_limit: &file::RateLimit,
    at: Location,
) -> Result<Option<(Unit, Algorithm)>, Error> {
    let unit = rate_limit.unit.as_ref();
    let Some(unit) = unit.filter(|unit| !unit.value.is_empty()) else {
        let message = "unit is missing; write one from second to year";
        return check(rate_limit.unlimited, at, message).map(|()| None);
    };
    let message = "an unlimited descriptor has no unit; remove it";
    check(!rate_limit.unlimited, unit.referenced, message)?;
    let known = Unit::named(&unit.value).ok_or_else(|| {
        let message = format!("unit is {:?}: write one from second to year", unit.value);
        wrong(unit.referenced, message)
    })?;
    let cannot_charge = rate_limit.charge_refused && rate_limit.algorithm.slides();
    let message = "charge_refused needs an algorithm that does not slide; remove it, or choose one";
    check(!cannot_charge, at, message)?;
    let algorithm = match rate_limit.requests_per_unit {
        0 => AlgorithmName::FixedWindow.build(1, known, None),
        count => rate_limit
            .algorithm
            .build(count.into(), known, rate_limit.burst),
    };
    Ok(Some((
        known,
        algorithm.map_err(|message| wrong(at, message))?,
    )))
}

fn check(is_right: bool, at: Location, message: impl Into<String>) -> Result<(), Error> {
    is_right.then_some(()).ok_or_else(|| wrong(at, message))
}

/// The name of a policy, under which a store keeps its states: the key, with a digest where a name
/// cannot hold it.
fn policy_name(full_key: &str) -> String {
    let fits = |letter: &char| (' '..='~').contains(letter);
    if full_key.len() <= 64 && full_key.chars().all(|letter| fits(&letter)) {
        return full_key.to_owned();
    }
    let start: String = full_key.chars().take(40).filter(fits).collect();
    // FNV-1a: the same in every version and process.
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let digest = full_key.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{start}#{digest:016x}")
}
