use http::StatusCode;
use throttle_core::backend::Call;
use throttle_core::{BackendErrorKind, Decision, Key, Policy, Status};

use super::layer_info::{LayerInfo, LimitInfo};

/// One limit and what it says about a request: see [`Event::limits`](crate::Event::limits)
/// and [`LimitReport::limits`](crate::LimitReport::limits).
///
/// ```
/// use throttle_tower::throttle_core::{FixedWindow, Limiter, Policy, Rate};
/// use throttle_tower::{LimitReport, LimitStatus};
///
/// fn used_up(limit: &LimitStatus<'_>) -> bool {
///     limit.units().is_some_and(|units| units.status.remaining() == 0)
/// }
///
/// let logins = Limiter::in_memory(Policy::new("login", FixedWindow::new(Rate::per_day(6)))?)?;
/// let report = LimitReport::of(logins.set(), logins.check("ada", 2));
/// assert!(!report.limits().any(|limit| used_up(&limit)));
/// let report = LimitReport::of(logins.set(), logins.check("ada", 4));
/// assert!(report.limits().any(|limit| used_up(&limit)));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LimitStatus<'a> {
    /// The index of the limit in [`LayerInfo::limits`].
    pub index: usize,
    /// The limit.
    pub info: &'a LimitInfo,
    /// What it says.
    pub state: LimitState<'a>,
}

/// What a limit says about a request.
///
/// ```
/// use throttle_tower::LimitState;
///
/// fn has_free_permits(state: &LimitState<'_>) -> bool {
///     matches!(state, LimitState::Permits { free, .. } if *free > 0)
/// }
/// assert!(!has_free_permits(&LimitState::DoesNotApply));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LimitState<'a> {
    /// Of a limit on a rate that applies.
    Units(LimitUnits<'a>),
    /// Of a limit on requests in flight that applies: in peeks.
    Permits {
        /// The permits that the request needs.
        needed: u64,
        /// The permits that are free for the request's class.
        free: u64,
        /// The most permits that requests of its class may take.
        most: u64,
        /// The request's key. `Debug` does not show its content.
        key: &'a Key,
    },
    /// The request has no key: the limit is skipped, or refuses the request with this status. In
    /// peeks.
    NoKey(Option<StatusCode>),
    /// The limit would apply, and is [open](crate::OnError::Open) because the store has failed. In
    /// peeks.
    Open(BackendErrorKind),
    /// The limit does not apply to the request. In peeks.
    DoesNotApply,
}

/// What a limit on a rate says about a request to which it applies: see [`LimitStatus::units`].
///
/// ```
/// use throttle_tower::throttle_core::{Gcra, Limiter, Policy, Rate};
/// use throttle_tower::LimitReport;
///
/// let logins = Limiter::in_memory(Policy::new("login", Gcra::new(Rate::per_hour(6)))?)?;
/// let report = LimitReport::of(logins.set(), logins.check("ada", 2));
/// let units = report.limits().next().and_then(|limit| limit.units()).expect("a limit on a rate");
/// assert_eq!((units.cost, units.status.remaining(), units.most()), (2, 4, 6));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LimitUnits<'a> {
    /// Whether the limit admits the request, and what is left.
    pub status: &'a Status,
    /// The units that an unused key of the request's tier has.
    pub capacity: u64,
    /// The units that the request costs. In the report of a request, the units that were charged.
    pub cost: u64,
    /// The units that the request's class leaves free.
    pub reserve: u64,
    /// The request's key, in events and peeks. `Debug` does not show its content.
    pub key: Option<&'a Key>,
}

impl LimitUnits<'_> {
    /// Returns the most units that requests of the class may take: the capacity without the
    /// reserve.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.capacity.saturating_sub(self.reserve)
    }
}

impl<'a> LimitStatus<'a> {
    /// Returns the units of a limit on a rate that applies to the request; `None` in every other
    /// [state](Self::state).
    #[must_use]
    pub fn units(&self) -> Option<LimitUnits<'a>> {
        match self.state {
            LimitState::Units(units) => Some(units),
            _ => None,
        }
    }

    /// Returns the request's [class](crate::Limit::priority), if the limit has classes.
    #[must_use]
    pub fn class(&self) -> Option<&'a str> {
        let reserve = match self.state {
            LimitState::Units(units) => units.reserve,
            LimitState::Permits { most, .. } => self.info.permits?.checked_sub(most)?,
            _ => return None,
        };
        let class = self.info.classes.iter().find(|(_, own)| *own == reserve);
        class.map(|(name, _)| name.as_str())
    }
}

/// The set that decided a request: all limits of the layer on a rate, or those that may apply.
#[derive(Clone, Copy)]
pub(crate) struct RequestSet<'a> {
    pub(crate) policies: &'a [Policy],
    /// In the order of the policies. There are none if a key was missing, or if there were too few
    /// permits.
    pub(crate) calls: &'a [Call],
    /// The index of each policy's limit in the layer.
    pub(crate) indices: &'a [usize],
}

#[cfg(test)]
impl RequestSet<'_> {
    /// Of a request for which nothing was decided.
    pub(crate) const EMPTY: Self = Self {
        policies: &[],
        calls: &[],
        indices: &[],
    };
}

impl<'a> RequestSet<'a> {
    /// What the policy at an index of the set says.
    pub(crate) fn limit(
        self,
        here: usize,
        decision: &'a Decision,
        layer: &'a LayerInfo,
    ) -> Option<LimitStatus<'a>> {
        let index = *self.indices.get(here)?;
        let status = decision.statuses().get(here)?;
        let policy = self.policies.get(here)?.tier(status.tier());
        let call = self.calls.get(here);
        let state = LimitState::Units(LimitUnits {
            status,
            capacity: policy.algorithm().capacity(),
            cost: call.map_or(0, Call::cost),
            reserve: call.map_or(0, Call::reserve),
            key: call.and_then(Call::key),
        });
        let info = layer.limits().get(index)?;
        Some(LimitStatus { index, info, state })
    }
}
