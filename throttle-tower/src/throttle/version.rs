//! Builds a version of a layer, which its clones share, and reports what is wrong with its limits
//! on its backend.

use std::sync::Arc;

use throttle_core::{Backend, ConfigError, Policy, PolicySet};

use super::announcement::Announcement;
use super::builder::ThrottleBuilder;
use super::local_shares::Shares;
use super::optional_steps::OptionalSteps;
use super::options::Options;
use super::permits::Permits;
use super::response_options::ResponseOptions;
use super::selection_table::SelectionTable;
use super::shared_layer::{LayerCommon, SharedLayer};
use super::warning::{Warning, Watch};
use crate::event::{Activity, LayerVersion, LimitInfo, Observer, Observers};
use crate::limit::{
    CompiledLimits, KeySource, LimitSettings, LookupResult, OnError, check_refuses,
};

/// What a version of a layer's limits is built from, in addition to its builder.
pub(super) enum Origin<'a, B: Backend> {
    /// A layer of its own.
    New,
    /// A layer with the settings of another one: they count together what runs in the background,
    /// and have one share of a store.
    Template(&'a SharedLayer<B>),
    /// The version that it replaces: permits and warnings count on, too.
    Former(&'a SharedLayer<B>),
}

/// Builds a version of a layer's limits. When nothing can fail any more, its observers learn of it.
///
/// # Errors
///
/// If the limits cannot be enforced on the builder's backend.
pub(super) fn build_version<B: Backend>(
    builder: ThrottleBuilder<B>,
    origin: &Origin<'_, B>,
) -> Result<SharedLayer<B>, ConfigError> {
    let ThrottleBuilder {
        limits,
        backend,
        observers,
        settings,
    } = builder;
    let CompiledLimits {
        set,
        applied,
        permits,
        selections,
    } = limits.compile()?;
    let (template, former) = match origin {
        Origin::New => (None, None),
        Origin::Template(shared) => (Some(*shared), None),
        Origin::Former(shared) => (Some(*shared), Some(*shared)),
    };
    let permits = match former {
        Some(former) => former.permits.replaced_by(permits),
        None => Permits::new(permits),
    };
    let watch = former.map(|former| &former.announced.options.watch);
    let responses = ResponseOptions {
        dialect: settings.dialect.unwrap_or_default(),
        hide_headers: settings.hide_headers.clone(),
        sdk_hints: settings.sdk_hints,
        report_in: settings.report_in.unwrap_or_default(),
        watch: Watch::new(settings.on_warning.clone(), watch),
    };
    let options = Options::new(settings, template.map(|template| &template.options));
    let mut shared = without_local_share(
        backend,
        set,
        applied,
        Arc::new(permits),
        (options, responses),
        None,
    )?;
    shared.selections = selections;
    make_share(&mut shared)?;
    warn_of_small_shares(&shared, former);
    report_built(&mut shared, former, &observers);
    Ok(shared)
}

/// A layer without shares, which no observer knows yet: of a new version, or a part of one.
pub(super) fn without_local_share<B: Backend>(
    backend: B,
    set: PolicySet,
    applied: Arc<[LimitSettings]>,
    permits: Arc<Permits>,
    (options, responses): (Options, ResponseOptions),
    version: Option<LayerVersion>,
) -> Result<SharedLayer<B>, ConfigError> {
    check(&backend, set.policies(), &applied, &options)?;
    let prepared = Arc::new(backend.prepare(set)?);
    let mut announced = Announcement::new(
        B::set(&prepared).policies(),
        Arc::clone(&applied),
        responses,
    );
    let version =
        version.unwrap_or_else(|| version_of(&backend, &announced.policies, &applied, &permits));
    announced.limit_indices = applied.iter().map(|limit| limit.limit_index).collect();
    announced.info = version.info().clone();
    let announced = Arc::new(announced);
    let uses = OptionalSteps::of(&applied, &permits);
    // A queue is known by the index of its limit.
    let narrowed = match uses.queues {
        None => SelectionTable::new(&applied, backend.can_fail()),
        Some(_) => None,
    };
    Ok(SharedLayer {
        backend,
        prepared,
        narrowed,
        common: LayerCommon {
            version,
            selections: Arc::default(),
            applied,
            uses,
            sources: Arc::default(),
            permits,
            queues: Arc::default(),
            share: None,
            options,
            announced,
        },
    })
}

/// What observers learn of the limits.
fn version_of<B: Backend>(
    backend: &B,
    policies: &[Policy],
    applied: &[LimitSettings],
    permits: &Permits,
) -> LayerVersion {
    let waits = |limit: &LimitSettings| !matches!(limit.key_source, KeySource::Extracted(_));
    let decides_in_steps = !permits.is_empty() || applied.iter().any(waits);
    let rates = policies.iter().zip(applied);
    let rates = rates.map(|(policy, limit)| {
        let info = LimitInfo::of_rate(policy, limit, decides_in_steps);
        (limit.limit_index, info)
    });
    let of_permits = permits.limits().iter();
    let of_permits =
        of_permits.map(|limit| (limit.applied.limit_index, LimitInfo::of_permits(limit)));
    let mut infos: Vec<(usize, LimitInfo)> = Vec::new();
    for limit in rates.chain(of_permits) {
        let position = infos.partition_point(|(index, _)| *index < limit.0);
        infos.insert(position, limit);
    }
    LayerVersion::new(backend.clone(), infos.into_iter().map(|(_, info)| info))
}

/// Makes the shares by which this process decides when the store does not, where a limit may need
/// one.
///
/// # Errors
///
/// If the store for shares cannot hold them.
pub(super) fn make_share<B: Backend>(shared: &mut SharedLayer<B>) -> Result<(), ConfigError> {
    if !shared.backend.can_fail() {
        return Ok(());
    }
    let on_error = |index: usize| shared.options.on_error_of(shared.applied.get(index)?);
    let store = shared.options.local_store.clone().unwrap_or_default();
    let share = Shares::new(&store, B::set(&shared.prepared), &on_error)?;
    if let Some(share) = &share {
        Arc::make_mut(&mut shared.announced).set_share(share.set());
        shared.options.local_store = Some(store);
    }
    shared.share = share;
    Ok(())
}

/// Warns of each limit of fewer units than processes that share it, unless the `former` version
/// gave the same warning.
fn warn_of_small_shares<B: Backend>(shared: &SharedLayer<B>, former: Option<&SharedLayer<B>>) {
    let given: Vec<Warning> = former.into_iter().flat_map(small_shares).collect();
    for warning in small_shares(shared).filter(|warning| !given.contains(warning)) {
        shared.announced.options.watch.warn(&warning);
    }
}

fn small_shares<B: Backend>(shared: &SharedLayer<B>) -> impl Iterator<Item = Warning> {
    let policies = B::set(&shared.prepared).policies();
    let limits = shared.applied.iter().zip(policies);
    let limits = limits.filter(|_| shared.backend.can_fail());
    limits.filter_map(|(limit, policy)| {
        let processes = shared.options.on_error_of(limit)?.processes()?.get();
        let tiers = policy.tiers().map(|(_, tier)| tier).chain([policy]);
        let capacity = tiers.map(|tier| tier.algorithm().capacity()).min()?;
        (u64::from(processes) > capacity).then(|| Warning::ShareBelowOne {
            policy: policy.policy_name().clone(),
            processes,
            capacity,
        })
    })
}

/// # Errors
///
/// Names the policy that does not say what happens when the store fails, or that cannot be enforced
/// by refusing.
fn check<B: Backend>(
    backend: &B,
    policies: &[Policy],
    applied: &[LimitSettings],
    options: &Options,
) -> Result<(), ConfigError> {
    for (limit, policy) in applied.iter().zip(policies) {
        match options.on_error_of(limit) {
            None if backend.can_fail() => {
                let rule = "the backend can fail, and there is no silent default; add \
                    .on_error(OnError::local(n)) to \
                            let this process decide then by a part of the limit, where n \
                            processes share it, \
                            .on_error(OnError::Open) to admit requests, or \
                            .on_error(OnError::Closed) to answer \
                            503, to the limit, or to the layer's builder";
                return Err(ConfigError::new("on_error", "not set", rule).in_policy(policy.name()));
            }
            Some(OnError::Local { processes: 0 }) => {
                let rule =
                    "at least one process shares the limit: this one; give the number that you run";
                return Err(
                    ConfigError::new("processes of on_error", 0, rule).in_policy(policy.name())
                );
            }
            _ => {}
        }
        if limit.charge_rules.ban.is_some() && !backend.has_exceptions() {
            let rule = "this backend cannot ban keys, so the limit would never ban; remove the \
                ban, or use a backend whose has_exceptions() is true, such as MemoryBackend or \
                RedisBackend; one of your own implements strike, except, exceptions and \
                has_exceptions of Backend";
            return Err(ConfigError::new("ban", "unsupported", rule).in_policy(policy.name()));
        }
        let mut tiers = policy.tiers().map(|(_, tier)| tier).chain([policy]);
        tiers
            .try_for_each(|tier| check_refuses(tier.algorithm()))
            .map_err(|error| error.in_policy(policy.name()))?;
    }
    Ok(())
}

/// Reports to the observers that a layer was built, or that its `former` version was replaced.
fn report_built<B: Backend>(
    shared: &mut SharedLayer<B>,
    former: Option<&SharedLayer<B>>,
    observers: &[Arc<dyn Observer>],
) {
    let former = former.map(|former| former.version.info());
    shared.options.observers = Observers::of_version(observers, shared.version.info(), former);
    report_lookups(shared);
}

/// Lets the layer's lookups of plans report to its observers, apart from those of other layers with
/// the same plans.
fn report_lookups<B: Backend>(shared: &mut SharedLayer<B>) {
    let observers = &shared.options.observers;
    let is_tiered = |limit: &LimitSettings| matches!(limit.key_source, KeySource::Tiered(_));
    if observers.is_empty() || !shared.applied.iter().any(is_tiered) {
        return;
    }
    let reporting = |limit: &LimitSettings| match &limit.key_source {
        KeySource::Tiered(lookup) => {
            let (observers, index) = (observers.clone(), limit.limit_index);
            let report = move |result| {
                observers.happened(Activity::LookedUp {
                    limit: index,
                    result: LookupResult::LABELS[result as usize],
                });
            };
            LimitSettings {
                key_source: KeySource::Tiered(lookup.reporting(Arc::new(report))),
                ..limit.clone()
            }
        }
        KeySource::Extracted(_) | KeySource::Future(_) => limit.clone(),
    };
    shared.applied = shared.applied.iter().map(reporting).collect();
}

#[cfg(test)]
mod tests {
    use throttle_core::{LeakyBucket, Rate};

    use crate::{Constant, ThrottleLayer, limit};

    #[test]
    fn limit_that_delays_is_an_error_in_a_throttle() {
        let bucket = LeakyBucket::new(Rate::per_second(1)).build().unwrap();
        let delays = limit("queue", bucket).by(Constant);
        let error = ThrottleLayer::new(delays).unwrap_err();
        assert_eq!(
            (error.policy(), error.field(), error.value()),
            (Some("queue"), "algorithm", "leaky_bucket")
        );
    }
}
