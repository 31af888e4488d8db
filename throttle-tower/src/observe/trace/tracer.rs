use std::time::Duration;

use tokio::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Span, dispatcher};

use super::event_budget::EventBudget;
use crate::event::{Event, LayerInfo, LimitStatus, LimitUnits, Observer, Outcome};
use crate::observe::decider::Decider;
use crate::time::micros;

/// Emits the events of one version of a layer's limits.
pub(super) struct Tracer {
    started: Instant,
    /// One for each limit, and the last one for decisions without a limit.
    budgets: Box<[Budgets]>,
}

#[derive(Default)]
struct Budgets {
    refusals: EventBudget,
    degraded: EventBudget,
    near: EventBudget,
    audited: EventBudget,
}

impl Tracer {
    pub(super) fn new(layer: &LayerInfo) -> Self {
        let budgets = 0..=layer.limits().len();
        Self {
            started: Instant::now(),
            budgets: budgets.map(|_| Budgets::default()).collect(),
        }
    }

    /// Returns how many events were left out before this one, unless this one is.
    fn take(
        &self,
        limit: Option<&LimitStatus<'_>>,
        budget: impl Fn(&Budgets) -> &EventBudget,
    ) -> Option<u64> {
        let budgets = match limit {
            Some(limit) => self.budgets.get(limit.index)?,
            None => self.budgets.last()?,
        };
        budget(budgets).take(self.started.elapsed().as_secs())
    }
}

impl Observer for Tracer {
    #[inline]
    fn decided(&self, event: &Event<'_>) {
        // Without a subscriber that listens, this costs a look at a number that hardly ever
        // changes.
        if LevelFilter::current() != LevelFilter::OFF {
            self.emit(event);
        }
    }
}

impl Tracer {
    fn emit(&self, event: &Event<'_>) {
        let binding = event.binding();
        if let Some(binding) = &binding
            && span_declares_fields()
        {
            record(binding, &Span::current());
        }
        let binding = binding.as_ref();
        let is_refusal = !event.outcome.is_passed_on();
        if event.degraded().is_some() {
            // An event is not counted as left out if no subscriber is enabled for it.
            if tracing::enabled!(target: "throttle", Level::WARN)
                && let Some(left_out) = self.take(binding, |budgets| &budgets.degraded)
            {
                Fields::of(event, binding, is_refusal).warn(left_out);
            }
        } else if is_refusal
            && tracing::enabled!(target: "throttle", Level::INFO)
            && let Some(left_out) = self.take(binding, |budgets| &budgets.refusals)
        {
            Fields::of(event, binding, is_refusal).info("request refused", left_out);
        }
        for near in event.near() {
            if tracing::enabled!(target: "throttle", Level::INFO)
                && let Some(left_out) = self.take(Some(&near), |budgets| &budgets.near)
            {
                Fields::of(event, Some(&near), false).info("limit nearly used up", left_out);
            }
        }
        for audited in event.would_refuse() {
            if tracing::enabled!(target: "throttle", Level::INFO)
                && let Some(LimitUnits { status, .. }) = audited.units()
                && let Some(left_out) = self.take(Some(&audited), |budgets| &budgets.audited)
            {
                let fields = Fields {
                    retry_after_ms: status.retry_after().map(in_millis),
                    ..Fields::of(event, Some(&audited), false)
                };
                fields.info("request would be refused", left_out);
            }
        }
    }
}

/// A field that the span does not declare is ignored.
fn record(limit: &LimitStatus<'_>, span: &Span) {
    span.record(POLICY, limit.info.name.as_str());
    if let Some(units) = limit.units() {
        span.record(REMAINING, units.status.remaining());
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
    fn of(event: &Event<'a>, limit: Option<&LimitStatus<'a>>, is_refusal: bool) -> Self {
        let decision = event.decision.filter(|_| is_refusal);
        let wait = decision.and_then(|decision| decision.retry_after());
        let policy = match event.outcome {
            Outcome::NoPermit(limits) => limits.first(),
            _ => limit.map(|limit| &limit.info.name),
        };
        let units = limit.and_then(LimitStatus::units);
        Self {
            outcome: event.outcome.label(),
            policy: policy.map(|name| name.as_str()),
            class: limit.and_then(LimitStatus::class),
            limit: units.map(|units| units.capacity),
            remaining: units.map(|units| units.status.remaining()),
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
