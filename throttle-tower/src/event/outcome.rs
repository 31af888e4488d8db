use std::fmt;

use http::request::Parts;
use throttle_core::{BackendError, BackendErrorKind, DecidedBy, Decision, PolicyName, Status};

use super::layer_info::LayerInfo;
use super::limit_status::{LimitStatus, RequestSet};

/// The outcome of a request, passed to an [`Observer`](crate::Observer) and to the hook of
/// [`ThrottleBuilder::on_decision`](crate::ThrottleBuilder::on_decision).
///
/// It never prints a key: `Debug` of the keys of [`limits`](Self::limits) leaves out their content.
/// Policy names and outcomes are bounded, so they can be metric labels;
/// paths and headers cannot. `Debug` leaves out the request's head.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use http::{Request, Response};
/// use throttle_tower::{Constant, Gcra, Outcome, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let refused = Arc::new(AtomicU64::new(0));
/// let counter = Arc::clone(&refused);
/// let limits = limit("all", Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant);
/// let throttle = ThrottleLayer::builder(limits).on_decision(move |event| {
///     if let Outcome::Refused = event.outcome {
///         counter.fetch_add(1, Ordering::Relaxed);
///         let binding = event.binding().expect("a limit refuses it");
///         assert_eq!(binding.info.name.as_str(), "all");
///     }
/// }).build()?;
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// for _ in 0..3 {
///     service.clone().oneshot(Request::new(())).await?;
/// }
/// assert_eq!(refused.load(Ordering::Relaxed), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Whether the request was passed on or refused, and why.
    pub outcome: Outcome<'a>,
    /// The decision, if there was one: by the store or, when the store failed, by this process or
    /// by open limits. [`Decision::decided_by`] states which. A layer of many limits may decide a
    /// request by a part of them, and the statuses are those of that part:
    /// [`limits`](Self::limits) names them.
    pub decision: Option<&'a Decision>,
    /// The request's head. The client wrote it, so do not log it raw.
    pub parts: &'a Parts,
    /// The indices in the set of the policies of [`near`](Self::near).
    pub(crate) near: &'a [usize],
    /// What decided the request.
    pub(crate) set: RequestSet<'a>,
    pub(crate) layer: &'a LayerInfo,
}

/// Whether a request was passed on or refused, and why.
///
/// ```
/// use throttle_core::{BackendError, backend::BackendErrorKind};
/// use throttle_tower::Outcome;
///
/// let error = BackendError::new(BackendErrorKind::Timeout);
/// assert_eq!(Outcome::FailedClosed(&error).label(), "failed_closed");
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// It was passed on.
    Admitted,
    /// A limit refused it.
    Refused,
    /// A required key was missing.
    MissingKey,
    /// These limits on [requests in flight](crate::InFlight) had too few permits left.
    NoPermit(&'a [PolicyName]),
    /// The store failed and the limits that apply are open.
    FailedOpen(&'a BackendError),
    /// The store failed and a limit is closed.
    FailedClosed(&'a BackendError),
}

impl Outcome<'_> {
    /// All labels, in the order of the variants.
    ///
    /// ```
    /// use throttle_tower::Outcome;
    ///
    /// assert!(Outcome::LABELS.contains(&Outcome::Refused.label()));
    /// ```
    pub const LABELS: [&'static str; 6] = [
        "admitted",
        "refused",
        "missing_key",
        "no_permit",
        "failed_open",
        "failed_closed",
    ];

    /// A label for metrics: `admitted`, `refused`, `missing_key`, `no_permit`, `failed_open` or
    /// `failed_closed`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        Self::LABELS[self.index()]
    }

    /// The index of the label among all [labels](Self::LABELS), for arrays of counters.
    #[must_use]
    pub const fn index(&self) -> usize {
        match self {
            Self::Admitted => 0,
            Self::Refused => 1,
            Self::MissingKey => 2,
            Self::NoPermit(_) => 3,
            Self::FailedOpen(_) => 4,
            Self::FailedClosed(_) => 5,
        }
    }

    /// Whether the request was passed on to the inner service.
    #[must_use]
    pub const fn is_passed_on(&self) -> bool {
        matches!(self, Self::Admitted | Self::FailedOpen(_))
    }
}

impl<'a> Event<'a> {
    /// The limits on a rate that apply to the request, in their order. There are none if nothing
    /// was decided, for example because a required key was missing or permits ran out. See
    /// [`Observer`] for an example.
    ///
    /// [`Observer`]: crate::Observer
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'a>> + use<'a> {
        self.limits_whose_status(Status::applies)
    }

    fn limits_whose_status(
        &self,
        is: fn(&Status) -> bool,
    ) -> impl Iterator<Item = LimitStatus<'a>> + use<'a> {
        let (set, layer, decision) = (self.set, self.layer, self.decision);
        let statuses = decision.map_or(&[][..], Decision::statuses);
        let found = statuses.iter().enumerate().filter(move |(_, own)| is(own));
        found.filter_map(move |(here, _)| set.limit(here, decision?, layer))
    }

    /// Why the store did not decide the request; `None` if it did, or was not called. The number of
    /// events with a reason is the number of degraded decisions: admitted or refused by this
    /// process's [share](crate::OnError::Local), admitted by open limits, or refused with 503.
    #[must_use]
    pub fn degraded(&self) -> Option<BackendErrorKind> {
        match self.outcome {
            Outcome::FailedOpen(error) | Outcome::FailedClosed(error) => Some(error.kind()),
            Outcome::Admitted | Outcome::Refused | Outcome::MissingKey | Outcome::NoPermit(_) => {
                self.decision?.degraded()
            }
        }
    }

    /// What decided: the store, this process, or an open limit. `None` where there is no decision:
    /// a required key was missing, or a limit is closed.
    #[must_use]
    pub fn decided_by(&self) -> Option<DecidedBy> {
        self.decision.map(Decision::decided_by)
    }

    /// The [audited](crate::Limit::audit) limits that would have refused the request.
    pub fn would_refuse(&self) -> impl Iterator<Item = LimitStatus<'a>> + use<'a> {
        self.limits_whose_status(Status::would_refuse)
    }

    /// The limits that the request has brought near their ends, as
    /// [`warn_at`](crate::Limit::warn_at) says.
    pub fn near(&self) -> impl Iterator<Item = LimitStatus<'a>> + use<'a> {
        let (set, layer, decision) = (self.set, self.layer, self.decision);
        let near = self.near.iter();
        near.filter_map(move |here| set.limit(*here, decision?, layer))
    }

    /// The limit that decided, if one did.
    #[must_use]
    pub fn binding(&self) -> Option<LimitStatus<'a>> {
        let decision = self.decision?;
        self.set.limit(decision.binding()?, decision, self.layer)
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Event");
        shown
            .field("outcome", &self.outcome)
            .field("decision", &self.decision);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::backend::Call;
    use throttle_core::{Backend, Gcra, Key, MemoryBackend, Rate};

    use super::*;
    use crate::event::LayerVersion;
    use crate::{Constant, ThrottleLayer, all, limit, plans};

    fn parts() -> Parts {
        http::Request::get("/secret")
            .body(())
            .unwrap()
            .into_parts()
            .0
    }

    #[test]
    fn outcomes_have_their_labels_and_two_are_passed_on() {
        let error = BackendError::new(BackendErrorKind::Timeout);
        for (place, (outcome, label, is_passed_on)) in [
            (Outcome::Admitted, "admitted", true),
            (Outcome::Refused, "refused", false),
            (Outcome::MissingKey, "missing_key", false),
            (Outcome::NoPermit(&[]), "no_permit", false),
            (Outcome::FailedOpen(&error), "failed_open", true),
            (Outcome::FailedClosed(&error), "failed_closed", false),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(
                (outcome.label(), outcome.is_passed_on()),
                (label, is_passed_on)
            );
            assert_eq!((outcome.index(), Outcome::LABELS[place]), (place, label));
        }
    }

    #[test]
    fn degraded_event_says_why() {
        let (error, parts) = (BackendError::new(BackendErrorKind::Timeout), parts());
        let version = LayerVersion::default();
        let calls = [Call::from(Key::CONSTANT)];
        let by_store = Decision::not_limited(1);
        let open = Decision::open(&calls, BackendErrorKind::Unavailable);
        for (outcome, decision, why) in [
            (
                Outcome::FailedOpen(&error),
                Some(&open),
                Some(BackendErrorKind::Timeout),
            ),
            (
                Outcome::FailedClosed(&error),
                None,
                Some(BackendErrorKind::Timeout),
            ),
            (
                Outcome::Admitted,
                Some(&open),
                Some(BackendErrorKind::Unavailable),
            ),
            (
                Outcome::Refused,
                Some(&open),
                Some(BackendErrorKind::Unavailable),
            ),
            (Outcome::Admitted, Some(&by_store), None),
            (Outcome::MissingKey, None, None),
            (Outcome::NoPermit(&[]), None, None),
        ] {
            let event = Event {
                outcome,
                decision,
                parts: &parts,
                near: &[],
                set: RequestSet::EMPTY,
                layer: version.info(),
            };
            assert_eq!(event.degraded(), why, "{event:?}");
            assert_eq!(
                event.decided_by(),
                decision.map(Decision::decided_by),
                "{event:?}"
            );
            assert!(event.binding().is_none(), "{event:?}");
        }
    }

    #[test]
    fn binding_limit_has_the_capacity_of_the_tier() {
        let tiers = [("free", 1), ("pro", 3)]
            .map(|(tier, count)| (tier, Gcra::new(Rate::per_minute(count))));
        let plans = plans("plan", tiers)
            .by(Constant)
            .lookup(|_: String| async { Some("pro") });
        let other = limit("other", Gcra::new(Rate::per_minute(9))).by(Constant);
        let layer = ThrottleLayer::new(all((other, plans.unknown("free")))).unwrap();
        layer.current.with(|shared| {
            let calls = [0, 1].map(|tier| Call::from(Key::CONSTANT).in_tier(tier));
            let decision = shared.backend.decide_now(&shared.prepared, &calls);
            let event = Event {
                outcome: Outcome::Admitted,
                decision: Some(&decision),
                parts: &parts(),
                near: &[],
                set: RequestSet {
                    policies: <MemoryBackend>::set(&shared.prepared).policies(),
                    indices: &[0, 1],
                    ..RequestSet::EMPTY
                },
                layer: shared.version.info(),
            };
            let binding = event.binding().unwrap();
            let capacity = binding.units().map(|units| units.capacity);
            assert_eq!((binding.info.name.as_str(), capacity), ("plan", Some(3)));
        });
    }

    #[test]
    fn debug_output_leaves_the_request_out() {
        let version = LayerVersion::default();
        let event = Event {
            outcome: Outcome::Refused,
            decision: None,
            parts: &parts(),
            near: &[],
            set: RequestSet::EMPTY,
            layer: version.info(),
        };
        assert_eq!(
            format!("{event:?}"),
            "Event { outcome: Refused, decision: None, .. }"
        );
    }
}
