use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use http::request::Parts;
use throttle_core::backend::Call;

use super::audit::Audit;
use super::charge_rules::ChargeRules;
use super::condition::Condition;
use super::key_source::KeySource;
use super::on_error::OnError;
use super::on_missing::OnMissing;
use super::priority::Priority;
use super::select::Selection;
use super::warn_at::WarnAt;
use crate::client_ip::ClientIp;
use crate::client_ip::first_requests::FirstRequests;
use crate::extract::KeyExtractor;
use crate::throttle::QueueSteps;

/// How a limit is applied to requests.
#[derive(Clone)]
pub(crate) struct LimitSettings {
    /// The index of the limit in the layer: among its limits of all kinds, in the order in which they
    /// are written.
    pub(crate) limit_index: usize,
    pub(crate) key_source: KeySource,
    pub(crate) cost: Option<CostOf>,
    pub(crate) when: Option<Condition>,
    /// What finds the limit for the requests that it applies to.
    pub(crate) selection: Option<Arc<Selection>>,
    pub(crate) on_missing: OnMissing,
    pub(crate) on_error: Option<OnError>,
    /// How long a key future may take.
    pub(crate) key_deadline: Duration,
    /// Whether the key depends on the route.
    pub(crate) by_route: bool,
    /// Whether the key depends on the peer's address.
    pub(crate) by_peer: bool,
    pub(crate) key_history: KeyHistory,
    pub(crate) charge_rules: ChargeRules,
    /// How long a request may be queued that would be refused.
    pub(crate) wait_up_to: Option<Duration>,
    /// What that needs.
    pub(crate) queue_steps: Option<&'static QueueSteps>,
    pub(crate) priority: Option<Arc<Priority>>,
    /// `None` if it is enforced.
    pub(crate) audit: Option<Audit>,
    /// From when on a key is near the end, if that is to be told.
    pub(crate) warn_at: Option<WarnAt>,
}

pub(crate) type CostOf = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

const DEFAULT_KEY_DEADLINE: Duration = Duration::from_secs(1);

impl LimitSettings {
    pub(super) fn by(key_source: KeySource) -> Self {
        let uses = |uses: fn(&dyn KeyExtractor) -> bool| key_source.extractor().is_some_and(uses);
        Self {
            by_route: uses(KeyExtractor::uses_route),
            by_peer: uses(|extractor| extractor.client_ip().is_some()),
            limit_index: 0,
            key_source,
            cost: None,
            when: None,
            selection: None,
            on_missing: OnMissing::Share,
            on_error: None,
            key_deadline: DEFAULT_KEY_DEADLINE,
            key_history: KeyHistory::default(),
            charge_rules: ChargeRules::default(),
            wait_up_to: None,
            queue_steps: None,
            priority: None,
            audit: None,
            warn_at: None,
        }
    }

    /// Raises an estimate of 0 to 1. A client may choose its estimate, and a cost of 0 is admitted
    /// by a limit that has nothing left. A member of an `any` is charged only if its cost is above
    /// 0.
    pub(super) fn with_least_estimate(mut self) -> Self {
        if self.charge_rules.settled_later {
            self.cost = self
                .cost
                .map(|cost| Arc::new(move |parts: &Parts| cost(parts).max(1)) as _);
        }
        self
    }

    /// Whether it applies to some requests only.
    #[inline]
    pub(crate) fn is_conditional(&self) -> bool {
        self.when.is_some() | self.selection.is_some()
    }

    /// Whether it applies to a request. `selected` are the limits that are selected for it, in
    /// ascending order.
    pub(crate) fn applies(&self, selected: &[usize], parts: &Parts) -> bool {
        (self.selection.is_none() || selected.binary_search(&self.limit_index).is_ok())
            && self.when.as_ref().is_none_or(|when| when(parts))
    }

    /// Whether requests for which it is not selected need not be asked about the limit. One that a
    /// handler settles is known by name to the handlers of all requests.
    pub(crate) fn may_be_left_out(&self) -> bool {
        self.selection.is_some() && !self.charge_rules.settled_later
    }

    /// The same limit for requests for which it is selected, if it may be left out for the others.
    pub(crate) fn where_it_is_selected(&self) -> Self {
        let selection = self.selection.clone().filter(|_| !self.may_be_left_out());
        Self {
            selection,
            key_history: KeyHistory(Arc::clone(&self.key_history.0)),
            ..self.clone()
        }
    }

    /// The call with the reserve of the request's class, if the limit has classes and applies.
    pub(crate) fn in_class(&self, call: Call, parts: &Parts) -> Call {
        match self.priority.as_ref().filter(|_| call.key().is_some()) {
            Some(priority) => call.reserving(priority.reserve(parts)),
            None => call,
        }
    }

    /// The units that a request costs.
    #[inline]
    pub(crate) fn cost_of(&self, parts: &Parts) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(parts))
    }

    /// The source of the client's address, if the key depends on one.
    pub(crate) fn client_ip(&self) -> Option<&ClientIp> {
        self.key_source
            .extractor()
            .and_then(KeyExtractor::client_ip)
    }
}

/// Whether a limit finds keys, and if they are addresses, those of clients. Requests are looked at
/// only until that is known.
#[derive(Debug, Default)]
pub(crate) struct KeyHistory(Arc<KeyRecord>);

#[derive(Debug, Default)]
struct KeyRecord {
    /// It is known, or the layer has warned.
    is_settled: AtomicBool,
    has_key: AtomicBool,
    missed: AtomicU32,
    first_requests: FirstRequests,
}

impl KeyHistory {
    /// Every request reads it, and only the first ones write.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.0.is_settled.load(Ordering::Relaxed)
    }

    pub(crate) fn found(&self) {
        self.0.has_key.store(true, Ordering::Relaxed);
    }

    /// Whether a key was found.
    pub(crate) fn has_key(&self) -> bool {
        self.0.has_key.load(Ordering::Relaxed)
    }

    /// Settles it; whether it was not settled before.
    pub(crate) fn settle(&self) -> bool {
        !self.0.is_settled.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn first_requests(&self) -> &FirstRequests {
        &self.0.first_requests
    }

    /// Counts a request without a key, and returns the count.
    pub(crate) fn missed(&self) -> u32 {
        self.0
            .missed
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1)
    }
}

impl Clone for KeyHistory {
    /// A clone of a limit is another limit.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for LimitSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LimitSettings");
        shown
            .field("key_source", &self.key_source)
            .field("on_missing", &self.on_missing)
            .field("on_error", &self.on_error);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::FoundTier;
    use crate::{ClientIp, Constant, Header, Route};

    #[test]
    fn clone_of_a_limit_has_seen_no_key() {
        let seen = KeyHistory::default();
        assert_eq!((1..=3).map(|_| seen.missed()).max(), Some(3));
        seen.found();
        seen.settle();
        let clone = seen.clone();
        assert!(seen.has_key() && seen.is_settled() && !clone.has_key() && !clone.is_settled());
        assert_eq!(clone.missed(), 1);
    }

    #[test]
    fn only_the_first_that_settles_it_is_told_so() {
        let seen = KeyHistory::default();
        assert!(!seen.is_settled());
        assert_eq!([seen.settle(), seen.settle()], [true, false]);
        assert!(seen.is_settled());
        let found = KeyHistory::default();
        found.found();
        assert!(found.has_key() && found.settle() && !found.settle());
    }

    #[test]
    fn limit_by_a_key_has_no_other_rules() {
        let by = |key_source| LimitSettings::by(key_source);
        let constant = by(KeySource::Extracted(Arc::new(Constant)));
        assert_eq!((constant.by_route, constant.by_peer), (false, false));
        assert!(constant.cost.is_none() && constant.when.is_none());
        assert_eq!(
            (constant.on_missing, constant.on_error),
            (OnMissing::Share, None)
        );
        assert_eq!(
            (constant.key_deadline, constant.wait_up_to),
            (Duration::from_secs(1), None)
        );
        let by_route = by(KeySource::Extracted(Arc::new(Route)));
        assert_eq!((by_route.by_route, by_route.by_peer), (true, false));
        let by_peer = by(KeySource::Extracted(Arc::new(ClientIp::peer())));
        assert_eq!((by_peer.by_route, by_peer.by_peer), (false, true));
        let by_future = by(KeySource::Future(Arc::new(|_, _| {
            Box::pin(async { (None, FoundTier::Numbered(0)) })
        })));
        assert_eq!((by_future.by_route, by_future.by_peer), (false, false));
    }

    #[test]
    fn each_rule_is_shown_under_its_own_name() {
        let applied = LimitSettings::by(KeySource::Extracted(Arc::new(Header::new("x-user"))));
        let applied = LimitSettings {
            on_error: Some(OnError::Open),
            ..applied
        };
        let shown = r#"LimitSettings { key_source: Header("x-user"), on_missing: Share, on_error: Some(Open), .. }"#;
        assert_eq!(format!("{applied:?}"), shown);
    }
}
