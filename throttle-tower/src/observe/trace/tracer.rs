use std::time::Duration;

use throttle_core::{BackendErrorKind, Decision, PolicyName};
use tokio::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Span, dispatcher};

use super::event_budget::EventBudget;
use crate::event::{Event, LayerInfo, LimitStatus, Observer, Outcome};
use crate::observe::decider::Decider;
use crate::time::micros;

/// Emits the events of one version of a layer's limits.
pub(super) struct Tracer {
    started: Instant,
    /// One row for each limit, and the last one for decisions without a limit.
    budgets: Box<[[EventBudget; MESSAGES.len()]]>,
}

/// What an event reports, in the order of [`MESSAGES`].
#[derive(Clone, Copy)]
enum Topic {
    Refusal,
    Degraded,
    Near,
    Audited,
}

const MESSAGES: [&str; 4] = [
    "request refused",
    "decided without the store",
    "limit nearly used up",
    "request would be refused",
];

impl Tracer {
    pub(super) fn new(layer: &LayerInfo) -> Self {
        let rows = 0..=layer.limits().len();
        Self {
            started: Instant::now(),
            budgets: rows.map(|_| Default::default()).collect(),
        }
    }
}

impl Observer for Tracer {
    #[inline]
    fn decided(&self, event: &Event<'_>) {
        // Without a subscriber that listens, this costs a look at a number that hardly ever
        // changes.
        if LevelFilter::current() != LevelFilter::OFF {
            self.emit_all(event);
        }
    }
}

impl Tracer {
    fn emit_all(&self, event: &Event<'_>) {
        let binding = event.binding();
        if let Some(binding) = &binding
            && span_declares_fields()
        {
            record(binding, &Span::current());
        }
        let is_refusal = !event.outcome.is_passed_on();
        let refusal = event.decision.filter(|_| is_refusal);
        let wait = refusal.and_then(Decision::retry_after);
        if event.degraded().is_some() {
            self.emit(Topic::Degraded, event, binding, wait);
        } else if is_refusal {
            self.emit(Topic::Refusal, event, binding, wait);
        }
        for near in event.near() {
            self.emit(Topic::Near, event, Some(near), None);
        }
        for audited in event.would_refuse() {
            let wait = audited.units().and_then(|units| units.status.retry_after());
            self.emit(Topic::Audited, event, Some(audited), wait);
        }
    }

    /// Emits an event about a limit, if its second has not had too many. An event is not counted as
    /// left out if no subscriber is enabled for it.
    fn emit(
        &self,
        topic: Topic,
        event: &Event<'_>,
        limit: Option<LimitStatus<'_>>,
        wait: Option<Duration>,
    ) {
        let is_enabled = match topic {
            Topic::Degraded => tracing::enabled!(target: "throttle", Level::WARN),
            _ => tracing::enabled!(target: "throttle", Level::INFO),
        };
        if !is_enabled {
            return;
        }
        let row = match &limit {
            Some(limit) => self.budgets.get(limit.index),
            None => self.budgets.last(),
        };
        let second = self.started.elapsed().as_secs();
        let Some(left_out) = row.and_then(|row| row[topic as usize].take(second)) else {
            return;
        };
        let outcome = event.outcome.label();
        let policy = match event.outcome {
            Outcome::NoPermit(limits) => limits.first(),
            _ => limit.as_ref().map(|limit| &limit.info.name),
        };
        let policy = policy.map(PolicyName::as_str);
        let class = limit.as_ref().and_then(LimitStatus::class);
        let units = limit.as_ref().and_then(LimitStatus::units);
        let remaining = units.map(|units| units.status.remaining());
        let limit = units.map(|units| units.capacity);
        let retry_after_ms = wait.map(|wait| micros(wait).div_ceil(1_000));
        let decided_by = Decider::of(event).map(Decider::label);
        let why = event.degraded().map(BackendErrorKind::label);
        let message = MESSAGES[topic as usize];
        match topic {
            Topic::Degraded => tracing::warn!(
                target: "throttle",
                outcome, policy, class, limit, remaining, retry_after_ms, decided_by, why, left_out,
                "{message}"
            ),
            _ => tracing::info!(
                target: "throttle",
                outcome, policy, class, limit, remaining, retry_after_ms, decided_by, why, left_out,
                "{message}"
            ),
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
