use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Decision, Policy, Status};
use tokio::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Span, dispatcher};

use super::event_budget::EventBudget;
use crate::event::BuiltInObserver;
use crate::event::Observed;
use crate::event::{Event, Outcome};
use crate::limit::Applied;
use crate::observe::decider::Decider;
use crate::time::micros;

/// Emits the events of a layer.
pub(super) struct Tracer {
    started: Instant,
    /// One for each policy, and the last one for decisions without a policy.
    budgets: Box<[Budgets]>,
    applied: Arc<[Applied]>,
    has_audited: bool,
}

#[derive(Default)]
struct Budgets {
    refusals: EventBudget,
    degraded: EventBudget,
    near: EventBudget,
    audited: EventBudget,
}

impl Tracer {
    pub(super) fn new(of: &Observed) -> Self {
        let budgets = (0..=of.policies.len())
            .map(|_| Budgets::default())
            .collect();
        Self {
            started: Instant::now(),
            budgets,
            applied: Arc::clone(&of.applied),
            has_audited: of.applied.iter().any(|limit| limit.audit.is_some()),
        }
    }

    /// The request's class in the policy at a place.
    fn class(&self, place: usize, event: &Event<'_>) -> Option<&str> {
        self.applied
            .get(event.place(place))?
            .priority
            .as_ref()?
            .name(event.set.calls.get(place)?.reserve())
    }

    /// Returns how many events were left out before this one, unless this one is.
    fn take(
        &self,
        event: &Event<'_>,
        place: Option<usize>,
        budget: impl Fn(&Budgets) -> &EventBudget,
    ) -> Option<u64> {
        let budgets = place
            .and_then(|place| self.budgets.get(event.place(place)))
            .or(self.budgets.last())?;
        budget(budgets).take(self.started.elapsed().as_secs())
    }
}

impl BuiltInObserver for Tracer {
    fn renewed(
        &self,
        _: &Observed,
        of: &Observed,
        _: &crate::event::Observers,
    ) -> Option<Box<dyn BuiltInObserver>> {
        Some(Box::new(Self::new(of)))
    }

    #[inline]
    fn decided(&self, event: &Event<'_>) {
        // Without a subscriber that listens, this costs a look at a number that hardly ever
        // changes.
        if LevelFilter::current() != LevelFilter::OFF {
            self.tell(event);
        }
    }
}

impl Tracer {
    fn tell(&self, event: &Event<'_>) {
        let binding = Binding::of(event);
        if let Some(binding) = &binding
            && span_declares_fields()
        {
            binding.record(&Span::current());
        }
        let place = binding.as_ref().map(|binding| binding.place);
        let class = || place.and_then(|place| self.class(place, event));
        let is_refusal = !event.outcome.is_passed_on();
        if event.degraded().is_some() {
            // What nobody reads is neither emitted nor left out.
            if tracing::enabled!(target: "throttle", Level::WARN)
                && let Some(left_out) = self.take(event, place, |budgets| &budgets.degraded)
            {
                Fields::of(event, binding.as_ref(), class(), is_refusal).warn(left_out);
            }
        } else if is_refusal
            && tracing::enabled!(target: "throttle", Level::INFO)
            && let Some(left_out) = self.take(event, place, |budgets| &budgets.refusals)
        {
            Fields::of(event, binding.as_ref(), class(), is_refusal)
                .info("request refused", left_out);
        }
        for place in event.near {
            if tracing::enabled!(target: "throttle", Level::INFO)
                && let Some(left_out) = self.take(event, Some(*place), |budgets| &budgets.near)
            {
                let near = Binding::at(event, *place);
                Fields::of(event, near.as_ref(), self.class(*place, event), false)
                    .info("limit nearly used up", left_out);
            }
        }
        if self.has_audited {
            self.tell_audited(event);
        }
    }

    fn tell_audited(&self, event: &Event<'_>) {
        let statuses = event.decision.map_or(&[][..], Decision::statuses);
        let would_refuse = statuses
            .iter()
            .enumerate()
            .filter(|(_, status)| status.would_refuse());
        for (place, status) in would_refuse {
            if tracing::enabled!(target: "throttle", Level::INFO)
                && let Some(left_out) = self.take(event, Some(place), |budgets| &budgets.audited)
            {
                let audited = Binding::at(event, place);
                let class = self.class(place, event);
                let retry_after_ms = status.retry_after().map(in_millis);
                Fields {
                    retry_after_ms,
                    ..Fields::of(event, audited.as_ref(), class, false)
                }
                .info("request would be refused", left_out);
            }
        }
    }
}

/// The policy that decided.
struct Binding<'a> {
    place: usize,
    policy: &'a Policy,
    status: &'a Status,
}

impl<'a> Binding<'a> {
    fn of(event: &Event<'a>) -> Option<Self> {
        Self::at(event, event.decision?.binding()?)
    }

    fn at(event: &Event<'a>, place: usize) -> Option<Self> {
        let status = event.decision?.statuses().get(place)?;
        Some(Self {
            place,
            policy: event.policies.get(place)?.tier(status.tier()),
            status,
        })
    }

    /// A field that the span does not declare is ignored.
    fn record(&self, span: &Span) {
        span.record(POLICY, self.policy.name());
        span.record(REMAINING, self.status.remaining());
    }
}

/// The fields of spans.
const POLICY: &str = "throttle.policy";
const REMAINING: &str = "throttle.remaining";

/// Whether the current span declares a field for the decision. This only looks: a `Span` would be
/// counted as one more reference to the span, which costs more.
fn span_declares_fields() -> bool {
    let declares = |span: &'static Metadata<'static>| {
        [POLICY, REMAINING]
            .into_iter()
            .any(|field| span.fields().field(field).is_some())
    };
    dispatcher::get_default(|subscriber| subscriber.current_span().metadata().is_some_and(declares))
}

fn in_millis(wait: Duration) -> u64 {
    micros(wait).div_ceil(1_000)
}

/// The fields of an event.
struct Fields<'a> {
    outcome: &'static str,
    policy: Option<&'a str>,
    class: Option<&'a str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    decided_by: Option<&'static str>,
    why: Option<&'static str>,
}

impl<'a> Fields<'a> {
    fn of(
        event: &Event<'a>,
        binding: Option<&Binding<'a>>,
        class: Option<&'a str>,
        is_refusal: bool,
    ) -> Self {
        let wait = event
            .decision
            .filter(|_| is_refusal)
            .and_then(|decision| decision.retry_after());
        let policy = match event.outcome {
            Outcome::NoPermit(limits) => limits.first().map(|limit| limit.as_str()),
            _ => binding.map(|binding| binding.policy.name()),
        };
        Self {
            outcome: event.outcome.label(),
            policy,
            class,
            limit: binding.map(|binding| binding.policy.algorithm().capacity()),
            remaining: binding.map(|binding| binding.status.remaining()),
            retry_after_ms: wait.map(in_millis),
            decided_by: Decider::of(event).map(Decider::label),
            why: event.degraded().map(|why| why.label()),
        }
    }

    #[cold]
    fn info(self, message: &str, left_out: u64) {
        let Self {
            outcome,
            policy,
            class,
            limit,
            remaining,
            retry_after_ms,
            decided_by,
            why,
        } = self;
        tracing::info!(
            target: "throttle",
            outcome, policy, class, limit, remaining, retry_after_ms, decided_by, why, left_out,
            "{message}"
        );
    }

    #[cold]
    fn warn(self, left_out: u64) {
        let Self {
            outcome,
            policy,
            class,
            limit,
            remaining,
            retry_after_ms,
            decided_by,
            why,
        } = self;
        tracing::warn!(
            target: "throttle",
            outcome, policy, class, limit, remaining, retry_after_ms, decided_by, why, left_out,
            "decided without the store"
        );
    }
}
