use serde_json::{Map, Value, json};
use throttle_core::BackendErrorKind;

use super::board::{Board, Moment, PermitBoard, PolicyBoard};
use super::changes::Change;
use super::flows::{Flow, PolicyFlow};
use super::tight_list::{KeyName, TightKey};
use super::tightest::Tightest;
use crate::Offender;
use crate::Outcome;
use crate::candidate::{Candidate, Flips};
use crate::lock::lock;
use crate::observe::decider::Decider;

/// How many keys are listed.
pub(super) const LISTED: usize = 10;

/// What `/data.json` says. Its documentation is that of
/// [`ThrottleLayer::dashboard`](crate::ThrottleLayer::dashboard).
///
/// `reporting` is whether a layer reports to the board.
pub(super) fn data(
    board: &Board,
    service: Option<&str>,
    offenders: &[Offender],
    moment: &Moment,
    reporting: bool,
) -> Value {
    let flows = &board.flows;
    let outcomes: Map<String, Value> = Outcome::LABELS
        .iter()
        .zip(flows.outcomes())
        .map(|(outcome, count)| (outcome.to_string(), count.into()))
        .collect();
    let policies = board.policies.iter().zip(&flows.policies);
    let tightest = board.tightest.list(LISTED, moment.micros).into_iter();
    json!({
        "service": service,
        "reporting": reporting,
        "running_seconds": moment.running,
        "outcomes": outcomes,
        "requests": by_second(&flows.requests, moment),
        "binding": binding(board, moment),
        "policies": policies.map(|(policy, flow)| of_policy(policy, flow, moment)).collect::<Vec<_>>(),
        "tightest": tightest.filter_map(|key| of_tight_key(board, &key, moment)).collect::<Vec<_>>(),
        "decided_by": decided_by(board, moment),
        "rules_changes": board.rules_changes().into_iter().map(|second| moment.since(second)).collect::<Vec<_>>(),
        "store": {
            "answers": moment.sum(&board.store.answers),
            "failures": moment.sum(&board.store.failures),
            "slowest_ms": moment.most(&board.store.slowest_ms),
        },
        "permits": board.permits.iter().map(|permits| of_permits(permits, moment)).collect::<Vec<_>>(),
        "keys_held": board.keys_held(),
        "offenders": offenders.iter().map(|offender| of_offender(offender, &board.tightest)).collect::<Vec<_>>(),
        "candidates": lock(&board.candidates).0.iter().map(of_candidate).collect::<Vec<_>>(),
    })
}

/// The policy that refused most as the binding one; where none did, the one that bound most of the
/// admitted requests.
fn binding<'a>(board: &'a Board, moment: &Moment) -> Option<&'a str> {
    let policies = board.policies.iter().zip(&board.flows.policies);
    let bound = policies
        .map(|(policy, flow)| (bound(flow, moment), &*policy.name))
        .filter(|(bound, _)| *bound != (0, 0));
    // The first of equals, as in a decision.
    bound
        .rev()
        .max_by_key(|(bound, _)| *bound)
        .map(|(_, name)| name)
}

/// Requests that the policy refused as the binding one, and those of which it had the least left.
fn bound(flow: &PolicyFlow, moment: &Moment) -> (u64, u64) {
    (
        moment.sum(&flow.bound_refused),
        moment.sum(&flow.bound_admitted),
    )
}

/// Oldest first.
fn by_second(flow: &Flow, moment: &Moment) -> Value {
    let [admitted, refused] = [&flow.admitted, &flow.refused].map(|counts| {
        moment
            .seconds()
            .map(|second| counts.get(second))
            .collect::<Vec<_>>()
    });
    json!({ "admitted": admitted, "refused": refused })
}

fn of_policy(policy: &PolicyBoard, flow: &PolicyFlow, moment: &Moment) -> Value {
    let (refused, admitted) = bound(flow, moment);
    let mut data = by_second(&flow.flow, moment);
    data["name"] = json!(policy.name);
    data["audited"] = json!(policy.is_audited);
    data["binding"] = json!({ "refused": refused, "admitted": admitted });
    data["queued"] = json!(policy.queued());
    data["longest_wait_ms"] = json!(moment.most(&policy.longest_wait_ms));
    data
}

fn of_tight_key(board: &Board, key: &TightKey, moment: &Moment) -> Option<Value> {
    Some(json!({
        "policy": board.policies.get(key.policy)?.name,
        "key": key.name.to_string(),
        "left": key.left,
        "of": key.of,
        "resets_in_ms": key.resets.saturating_sub(moment.micros).div_ceil(1_000),
    }))
}

fn decided_by(board: &Board, moment: &Moment) -> Value {
    let [store, local, open, closed] = board
        .flows
        .deciders
        .each_ref()
        .map(|decisions| moment.sum(decisions));
    let changes = board.flows.changes.list();
    json!({
        "now": board.flows.changes.decider().map(Decider::label),
        "decisions": { "store": store, "local": local, "open": open, "closed": closed },
        "changes": changes.iter().map(|change| of_change(change, moment)).collect::<Vec<_>>(),
    })
}

fn of_change(change: &Change, moment: &Moment) -> Value {
    json!({
        "seconds_ago": moment.since(change.second),
        "from": change.from.map(Decider::label),
        "to": change.to.label(),
        "why": change.why.map(BackendErrorKind::label),
    })
}

fn of_permits(permits: &PermitBoard, moment: &Moment) -> Value {
    let taken = permits.taken();
    // Permits that were taken before the last two minutes, and are still held.
    let most_taken = taken.max(moment.most(&permits.most_taken).into());
    json!({ "name": permits.name, "taken": taken, "most_taken": most_taken, "refused": moment.sum(&permits.refused) })
}

fn of_offender(offender: &Offender, names: &Tightest) -> Value {
    let key = offender
        .digest
        .map_or(KeyName::Missing, |digest| names.name_of(digest));
    json!({
        "policy": offender.policy.as_str(),
        "key": key.to_string(),
        "refused": offender.refused,
        "shown": offender.shown,
    })
}

fn of_candidate(candidate: &Candidate) -> Value {
    let Flips {
        both_admit,
        both_refuse,
        would_refuse,
        would_admit,
        not_decided,
        ..
    } = candidate.counts.read();
    json!({
        "name": &*candidate.name,
        "both_admit": both_admit,
        "both_refuse": both_refuse,
        "would_refuse": would_refuse,
        "would_admit": would_admit,
        "not_decided": not_decided,
    })
}
