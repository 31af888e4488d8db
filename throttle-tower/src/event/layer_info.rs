use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use throttle_core::{Backend, Policy, PolicyName};

use crate::limit::{Applied, Keying, PermitLimit, WarnAt};

/// Reads how many keys a backend holds, if they are in this process.
type KeyCount = dyn Fn() -> Option<usize> + Send + Sync;

/// What a layer enforces, for its [observers](crate::Observer): one for each version of its limits.
/// Clones are the same version.
///
/// It keeps neither the layer nor its store alive. See [`Observer`](crate::Observer) for an
/// example.
#[derive(Clone)]
pub struct LayerInfo {
    limits: Arc<[LimitInfo]>,
    keys: Weak<KeyCount>,
}

impl LayerInfo {
    /// Returns the limits: those on a rate in the order given, then those on requests in flight. The
    /// index of a limit in this list is its index in statuses and activities.
    #[must_use]
    pub fn limits(&self) -> &[LimitInfo] {
        &self.limits
    }

    /// Returns how many keys the layer's store holds now. `None` if the store is not in this
    /// process, or if the version is no longer [in use](Self::is_in_use).
    #[must_use]
    pub fn keys_held(&self) -> Option<usize> {
        self.keys.upgrade()?()
    }

    /// Returns whether a layer, a service or a request still enforces this version of the limits.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.keys.strong_count() > 0
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
    #[cfg_attr(
        not(feature = "metrics"),
        expect(dead_code, reason = "it keeps the info in use")
    )]
    keys: Arc<KeyCount>,
}

impl LayerVersion {
    pub(crate) fn new(backend: impl Backend, limits: impl IntoIterator<Item = LimitInfo>) -> Self {
        let keys: Arc<KeyCount> = Arc::new(move || backend.keys_held());
        let info = LayerInfo {
            limits: limits.into_iter().collect(),
            keys: Arc::downgrade(&keys),
        };
        Self { info, keys }
    }

    pub(crate) fn info(&self) -> &LayerInfo {
        &self.info
    }

    /// The keys that the layer's store holds, if they are in this process.
    #[cfg(feature = "metrics")]
    pub(crate) fn keys_held(&self) -> Option<usize> {
        (self.keys)()
    }
}

/// Of no limits.
#[cfg(test)]
impl Default for LayerVersion {
    fn default() -> Self {
        Self::new(throttle_core::MemoryBackend::new(), [])
    }
}

/// One limit of a layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitInfo {
    /// The name.
    pub name: PolicyName,
    /// The policy of a limit on a rate, with its tiers.
    pub policy: Option<Policy>,
    /// The most permits of a limit on [requests in flight](crate::InFlight), of one key.
    pub permits: Option<u64>,
    /// The [classes](crate::Limit::priority), the highest first, with the units or permits that each
    /// leaves free. Empty without classes.
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
}

impl LimitInfo {
    pub(crate) fn of_rate(policy: &Policy, limit: &Applied) -> Self {
        Self {
            policy: Some(policy.clone()),
            ..Self::new(limit, policy.policy_name())
        }
    }

    pub(crate) fn of_permits(limit: &PermitLimit) -> Self {
        Self {
            permits: Some(limit.most),
            ..Self::new(&limit.applied, &limit.name)
        }
    }

    fn new(limit: &Applied, name: &PolicyName) -> Self {
        let priority = limit.priority.as_deref();
        let classes = priority.map(|priority| priority.classes().into());
        Self {
            name: name.clone(),
            policy: None,
            permits: None,
            classes: classes.unwrap_or_default(),
            warn_at_millionths: limit.warn_at.map(WarnAt::millionths),
            wait_up_to: limit.wait_up_to,
            bans: limit.charge_rules.ban.is_some(),
            looks_up: matches!(limit.keying, Keying::Tiered(_)),
            corrects: limit.charge_rules.may_change(),
        }
    }
}
