//! Where a backend and the reference differ, and which law that breaks.

use std::fmt;

use super::step::TraceStep;
use super::subject::Manner;
use crate::backend::{BackendError, KeyStep};
use crate::decision::Decision;
use crate::set::PolicySet;

/// Something that a caller sees of a decision. Durations are in µs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DecisionField {
    name: &'static str,
    policy: Option<usize>,
    value: Option<u64>,
}

impl DecisionField {
    pub(super) fn is_false(&self) -> bool {
        self.value == Some(0)
    }
}

/// Everything that a caller sees of a decision.
pub(super) fn fields(set: &PolicySet, decision: &Decision) -> Vec<DecisionField> {
    let micros = |duration: std::time::Duration| duration.as_micros() as u64;
    let mut fields = Vec::new();
    let mut add = |policy, name, value| {
        fields.push(DecisionField {
            name,
            policy,
            value,
        });
    };
    add(None, "is_admitted", Some(decision.is_admitted().into()));
    add(None, "remaining", Some(decision.remaining()));
    add(None, "retry_after", decision.retry_after().map(micros));
    add(None, "reset_after", Some(micros(decision.reset_after())));
    add(None, "delay", Some(micros(decision.delay())));
    add(
        None,
        "binding",
        decision.binding().map(|index| index as u64),
    );
    add(None, "statuses", Some(decision.statuses().len() as u64));
    for (index, (status, policy)) in decision.statuses().iter().zip(set.policies()).enumerate() {
        let policy_index = Some(index);
        for (name, is_so) in [
            ("applies", status.applies()),
            ("refuses", status.refuses()),
            ("is_violated", status.is_violated()),
            ("is_overflow", status.is_overflow()),
            ("is_excepted", status.is_excepted()),
            ("is_banned", status.is_banned()),
        ] {
            add(policy_index, name, Some(is_so.into()));
        }
        let window = status.effective_window(policy);
        add(policy_index, "charged", Some(status.charged()));
        add(policy_index, "remaining", Some(status.remaining()));
        add(
            policy_index,
            "retry_after",
            status.retry_after().map(micros),
        );
        add(
            policy_index,
            "reset_after",
            Some(micros(status.reset_after())),
        );
        add(policy_index, "effective_window", Some(micros(window)));
        add(policy_index, "tier", Some(status.tier().into()));
    }
    fields
}

/// The field of a step on an index beyond the set.
pub(super) const WITHOUT_A_POLICY: &str = "a step on an index without a policy";

/// The field of a decision whose calls name one key of a policy twice.
pub(super) const KEY_IN_TWO_CALLS: &str = "an error about a key in two calls of a policy";

/// What a step shows that the reference does not show.
#[derive(Debug)]
pub(super) struct Difference {
    pub(super) step: usize,
    field: &'static str,
    text: String,
    pub(super) cause: Cause,
}

/// What is known of a difference apart from its step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cause {
    /// An earlier step asked, and must have changed nothing.
    pub(super) has_idle_step: bool,
    /// The clock has stepped back.
    pub(super) is_behind: bool,
    /// One of both answers is that of unused keys.
    pub(super) is_as_unused: bool,
    pub(super) has_several_policies: bool,
}

impl Difference {
    pub(super) fn new(field: &'static str, text: String) -> Self {
        Self {
            step: 0,
            field,
            text,
            cause: Cause::default(),
        }
    }

    pub(super) fn error(error: &BackendError) -> Self {
        let source = std::error::Error::source(error);
        let why = source.map_or_else(String::new, |source| format!(": {source}"));
        Self::new("error", format!("the backend failed: {error}{why}"))
    }

    /// The first field that differs.
    pub(super) fn between(found: &[DecisionField], expected: &[DecisionField]) -> Option<Self> {
        let pair = found
            .iter()
            .zip(expected)
            .find(|(found, expected)| found != expected);
        let (found, expected) = pair?;
        let of = expected
            .policy
            .map_or_else(String::new, |policy| format!(" of policy {policy}"));
        let text = format!(
            "`{}`{of} is {:?}, and must be {:?}",
            expected.name, found.value, expected.value
        );
        Some(Self::new(expected.name, text))
    }

    /// The law that the shortest trace breaks, by what the trace needs.
    pub(super) fn law(&self, trace: &[TraceStep]) -> &'static str {
        let needs = |is_needed: fn(&TraceStep) -> bool| trace.iter().any(is_needed);
        if self.field == WITHOUT_A_POLICY {
            "contract, indices"
        } else if self.field == KEY_IN_TWO_CALLS {
            "contract, keys of a policy"
        } else if needs(
            |step| matches!(step, TraceStep::OnKeys { step, .. } if !matches!(step, KeyStep::Reset(_))),
        ) {
            "contract, exceptions and bans"
        } else if needs(|step| {
            matches!(
                step,
                TraceStep::DropDecision { .. } | TraceStep::DropSettlement { .. }
            )
        }) {
            "contract, cancellation"
        } else if needs(|step| matches!(step, TraceStep::Settle { .. } | TraceStep::Drain { .. })) {
            "law 10, a charge is used once"
        } else if needs(|step| {
            matches!(step, TraceStep::OnKeys { .. } | TraceStep::ResetAll { .. })
        }) {
            "law 11, resets"
        } else if needs(|step| {
            matches!(step, TraceStep::Decide { manner, .. } if *manner != Manner::Awaited)
                || matches!(step, TraceStep::ReadClock { .. })
        }) {
            "contract, `now`, `decide_at_once` and `decide_as_of`"
        } else if self.cause.has_idle_step {
            "law 1, refusals and peeks change nothing"
        } else if needs(|step| matches!(step, TraceStep::Set(_))) {
            "law 7, a changed limit"
        } else if self.cause.is_behind {
            "law 7, a clock that steps back"
        } else if self.cause.is_as_unused {
            "law 9, forgetting is invisible"
        } else if self.cause.has_several_policies {
            "law 5, a composition charges all or nothing"
        } else {
            match self.field {
                "retry_after" | "delay" | "is_admitted" | "refuses" => "law 2, exact waits",
                "remaining" => "law 3, exact units",
                "reset_after" | "effective_window" => "law 4, exact resets",
                _ => "law 8, one answer",
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
