use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use throttle_core::{Backend, Policy, PolicyName};

use crate::limit::{KeySource, LimitSettings, OnMissing, PermitLimit, WarnAt};

/// What a layer enforces, for its [observers](crate::Observer): one for each version of its limits.
/// Clones are the same version.
///
/// It keeps neither the layer nor its store alive.
/// [`ThrottleLayer::info`](crate::ThrottleLayer::info) returns it, too. See
/// [`Observer`](crate::Observer) for an observer that reads it.
///
/// ```
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
///
/// let all = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
/// let throttle = ThrottleLayer::new(all)?;
/// let info = throttle.info();
/// assert!(info.is_in_use() && !info.can_fail());
/// assert_eq!(info.keys_held(), Some(0));
/// drop(throttle);
/// assert!(!info.is_in_use());
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct LayerInfo {
    limits: Arc<[LimitInfo]>,
    can_fail: bool,
    store: Weak<StoreKeys>,
}

impl LayerInfo {
    /// Returns the limits, on rates and on requests in flight, in the order in which they are
    /// written. The index of a limit in this list is its index in statuses and activities.
    #[must_use]
    pub fn limits(&self) -> &[LimitInfo] {
        &self.limits
    }

    /// Of policies that no layer enforces.
    pub(crate) fn of_policies(policies: &[Policy]) -> Self {
        let info = |policy: &Policy| LimitInfo {
            policy: Some(policy.clone()),
            ..LimitInfo::named(policy.policy_name())
        };
        Self {
            limits: policies.iter().map(info).collect(),
            can_fail: false,
            store: Weak::new(),
        }
    }

    /// Returns whether decisions of the layer's store can fail, which those of a store in memory
    /// cannot.
    #[must_use]
    pub fn can_fail(&self) -> bool {
        self.can_fail
    }

    /// Returns how many keys the layer's store holds now. `None` if the store is not in this
    /// process, or if the version is no longer [in use](Self::is_in_use), so that a sum over all
    /// versions of a layer counts its store once.
    #[must_use]
    pub fn keys_held(&self) -> Option<usize> {
        let store = self.store.upgrade()?;
        if store.is_replaced.load(Ordering::Relaxed) {
            return None;
        }
        (store.keys_held)()
    }

    /// Returns whether a layer, a service or a request enforces this version of the limits, and no
    /// other version has replaced it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        let store = self.store.upgrade();
        store.is_some_and(|store| !store.is_replaced.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for LayerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerInfo")
            .field("limits", &self.limits)
            .field("is_in_use", &self.is_in_use())
            .finish_non_exhaustive()
    }
}

/// What keeps a [`LayerInfo`] in use: a version of a layer's limits.
#[derive(Clone)]
pub(crate) struct LayerVersion {
    info: LayerInfo,
    store: Arc<StoreKeys>,
}

struct StoreKeys {
    /// Whether another version has replaced this one.
    is_replaced: AtomicBool,
    /// Reads how many keys the backend holds, if they are in this process.
    keys_held: Box<dyn Fn() -> Option<usize> + Send + Sync>,
}

impl LayerVersion {
    pub(crate) fn new(backend: impl Backend, limits: impl IntoIterator<Item = LimitInfo>) -> Self {
        let can_fail = backend.can_fail();
        let store = Arc::new(StoreKeys {
            is_replaced: AtomicBool::new(false),
            keys_held: Box::new(move || backend.keys_held()),
        });
        let info = LayerInfo {
            limits: limits.into_iter().collect(),
            can_fail,
            store: Arc::downgrade(&store),
        };
        Self { info, store }
    }

    pub(crate) fn info(&self) -> &LayerInfo {
        &self.info
    }

    /// Another version is in force. Requests under way end with this one.
    pub(crate) fn replaced(&self) {
        self.store.is_replaced.store(true, Ordering::Relaxed);
    }
}

/// Of no limits.
#[cfg(test)]
impl Default for LayerVersion {
    fn default() -> Self {
        Self::new(throttle_core::MemoryBackend::new(), [])
    }
}

/// One limit of a layer: what the program has set, for observers. Either `policy` or `permits` is
/// set.
///
/// ```
/// use throttle_tower::{ClientIp, Gcra, InFlight, Rate, ThrottleLayer, all, limit};
///
/// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()).warn_at(0.8);
/// let in_flight = limit("in-flight", InFlight::new(20)).by(ClientIp::peer());
/// let info = ThrottleLayer::new(all((per_ip, in_flight)))?.info();
/// let [per_ip, in_flight] = info.limits() else { panic!("there are two") };
/// assert_eq!(per_ip.policy.as_ref().map(|policy| policy.algorithm().capacity()), Some(10));
/// assert_eq!(per_ip.warn_at_millionths, Some(800_000));
/// assert_eq!(in_flight.permits, Some(20));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitInfo {
    /// The name.
    pub name: PolicyName,
    /// The policy of a limit on a rate, with its tiers.
    pub policy: Option<Policy>,
    /// The most permits of a limit on [requests in flight](crate::InFlight), of one key.
    pub permits: Option<u64>,
    /// The [classes](crate::Limit::priority), the highest first, with the units or permits that
    /// each leaves free. Empty without classes.
    pub classes: Box<[(String, u64)]>,
    /// From which part of the capacity on an admitted request is near the limit's end, in
    /// millionths, as [`warn_at`](crate::Limit::warn_at) says. `None` if it says nothing.
    pub warn_at_millionths: Option<u32>,
    /// How long a request may be queued.
    pub wait_up_to: Option<Duration>,
    /// Whether the limit [bans](crate::Limit::ban) keys.
    pub bans: bool,
    /// Whether tiers are looked up.
    pub looks_up: bool,
    /// Whether responses may change charges: by refunds, strikes or settlements.
    pub corrects: bool,
    /// Whether a handler may [settle](crate::Limit::settled_later) what it used.
    pub settled_later: bool,
    /// Whether units may be given back: because of a response, or because a request that the limit
    /// admitted is refused after all.
    pub gives_back: bool,
    /// Whether a request without a key is [refused](crate::OnMissing::Reject).
    pub requires_key: bool,
}

impl LimitInfo {
    /// `decides_in_steps` is whether a request may be refused after its rates have admitted it.
    pub(crate) fn of_rate(policy: &Policy, limit: &LimitSettings, decides_in_steps: bool) -> Self {
        let new = Self::new(limit, policy.policy_name());
        Self {
            policy: Some(policy.clone()),
            gives_back: new.corrects || decides_in_steps,
            ..new
        }
    }

    pub(crate) fn of_permits(limit: &PermitLimit) -> Self {
        Self {
            permits: Some(limit.most),
            ..Self::new(&limit.applied, &limit.name)
        }
    }

    fn new(limit: &LimitSettings, name: &PolicyName) -> Self {
        let priority = limit.priority.as_deref();
        let classes = priority.map(|priority| priority.classes().into());
        Self {
            classes: classes.unwrap_or_default(),
            warn_at_millionths: limit.warn_at.map(WarnAt::millionths),
            wait_up_to: limit.wait_up_to,
            bans: limit.charge_rules.ban.is_some(),
            looks_up: matches!(limit.key_source, KeySource::Tiered(_)),
            corrects: limit.charge_rules.may_change(),
            settled_later: limit.charge_rules.settled_later,
            requires_key: matches!(limit.on_missing, OnMissing::Reject(_)),
            ..Self::named(name)
        }
    }

    fn named(name: &PolicyName) -> Self {
        Self {
            name: name.clone(),
            policy: None,
            permits: None,
            classes: Box::default(),
            warn_at_millionths: None,
            wait_up_to: None,
            bans: false,
            looks_up: false,
            corrects: false,
            settled_later: false,
            gives_back: false,
            requires_key: false,
        }
    }
}
