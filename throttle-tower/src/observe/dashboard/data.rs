use serde_json::{Map, Value, json};
use throttle_core::{BackendErrorKind, Policy};

use super::board::{Board, Moment};
use super::changes::DeciderChange;
use super::flows::Flow;
use super::rows::LimitRow;
use super::tightest::{TightKey, Tightest};
use crate::candidate::Flips;
use crate::observe::decider::Decider;
use crate::{LayerInfo, LimitInfo, Offender, Outcome};

/// How many keys are listed.
pub(super) const LISTED: usize = 10;

/// A limit of a layer in use, and what limits of its name do.
type LimitOfPage<'a> = (&'a LimitInfo, &'a LimitRow);

/// What `/data.json` says. Its documentation is that of [`Page`](crate::Page).
pub(super) fn data(
    board: &Board,
    service: Option<&str>,
    offenders: &[Offender],
    candidates: &[(String, Flips)],
    moment: &Moment,
) -> Value {
    let flows = &board.flows;
    let (versions, reporting) = board.versions();
    let all = versions.iter().flat_map(|version| version.rows());
    let mut limits: Vec<LimitOfPage<'_>> = Vec::new();
    for (info, row) in all {
        // Limits of one name count together.
        if limits.iter().all(|(other, _)| other.name != info.name) {
            limits.push((info, row));
        }
    }
    let (rates, permits): (Vec<LimitOfPage<'_>>, Vec<_>) = limits
        .into_iter()
        .partition(|(limit, _)| limit.policy.is_some());
    let outcomes: Map<String, Value> = Outcome::LABELS
        .iter()
        .zip(flows.outcomes())
        .map(|(outcome, count)| (outcome.to_string(), count.into()))
        .collect();
    let infos = versions.iter().map(|version| &version.info);
    let keys_held = infos.filter_map(LayerInfo::keys_held).reduce(|a, b| a + b);
    let mut tightest = board.tightest.list(moment.micros);
    tightest.retain(|key| rates.iter().any(|(limit, _)| limit.name == key.limit));
    tightest.truncate(LISTED);
    json!({
        "service": service,
        "reporting": reporting,
        "running_seconds": moment.running,
        "outcomes": outcomes,
        "requests": by_second(&flows.requests, moment),
        "binding": binding(&rates, moment),
        "policies": rates.iter().map(|limit| of_rate(limit, moment)).collect::<Vec<_>>(),
        "tightest": tightest.iter().map(|key| of_tight_key(key, moment)).collect::<Vec<_>>(),
        "decided_by": decided_by(board, moment),
        "rules_changes": board.changes().into_iter().map(|second| moment.since(second)).collect::<Vec<_>>(),
        "store": {
            "answers": moment.sum(&board.store.answers),
            "failures": moment.sum(&board.store.failures),
            "slowest_ms": moment.most(&board.store.slowest_ms),
        },
        "permits": permits.iter().map(|limit| of_permits(limit, moment)).collect::<Vec<_>>(),
        "keys_held": keys_held,
        "offenders": offenders.iter().map(|offender| of_offender(offender, &board.tightest)).collect::<Vec<_>>(),
        "candidates": candidates.iter().map(of_candidate).collect::<Vec<_>>(),
    })
}

/// The limit that refused most as the binding one; where none did, the one that bound most of the
/// admitted requests.
fn binding<'a>(limits: &[LimitOfPage<'a>], moment: &Moment) -> Option<&'a str> {
    let bound = limits
        .iter()
        .map(|(limit, row)| (bound(row, moment), limit.name.as_str()))
        .filter(|(bound, _)| *bound != (0, 0));
    // The first of equals, as in a decision.
    bound
        .rev()
        .max_by_key(|(bound, _)| *bound)
        .map(|(_, name)| name)
}

/// Requests that the limit refused as the binding one, and those of which it had the least left.
fn bound(row: &LimitRow, moment: &Moment) -> (u64, u64) {
    (
        moment.sum(&row.bound_refused),
        moment.sum(&row.bound_admitted),
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

fn of_rate((limit, row): &LimitOfPage<'_>, moment: &Moment) -> Value {
    let (refused, admitted) = bound(row, moment);
    let mut data = by_second(&row.flow, moment);
    data["name"] = json!(limit.name.as_str());
    data["audited"] = json!(limit.policy.as_ref().is_some_and(Policy::is_audited));
    data["binding"] = json!({ "refused": refused, "admitted": admitted });
    data["queued"] = json!(row.queued());
    data["longest_wait_ms"] = json!(moment.most(&row.longest_wait_ms));
    data
}

fn of_tight_key(key: &TightKey, moment: &Moment) -> Value {
    json!({
        "policy": key.limit.as_str(),
        "key": key.name.to_string(),
        "left": key.left,
        "of": key.of,
        "resets_in_ms": key.resets.saturating_sub(moment.micros).div_ceil(1_000),
    })
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

fn of_change(change: &DeciderChange, moment: &Moment) -> Value {
    json!({
        "seconds_ago": moment.since(change.second),
        "from": change.from.map(Decider::label),
        "to": change.to.label(),
        "why": change.why.map(BackendErrorKind::label),
    })
}

fn of_permits((limit, row): &LimitOfPage<'_>, moment: &Moment) -> Value {
    let taken = row.taken();
    // Permits that were taken before the last two minutes, and are still held.
    let most_taken = taken.max(moment.most(&row.most_taken).into());
    let refused = moment.sum(&row.bound_refused);
    json!({ "name": limit.name.as_str(), "taken": taken, "most_taken": most_taken, "refused": refused })
}

fn of_offender(offender: &Offender, names: &Tightest) -> Value {
    json!({
        "policy": offender.policy.as_str(),
        "key": names.name_of(offender.digest).to_string(),
        "refused": offender.refused,
        "shown": offender.shown,
    })
}

fn of_candidate((name, flips): &(String, Flips)) -> Value {
    json!({
        "name": name,
        "both_admit": flips.both_admit,
        "both_refuse": flips.both_refuse,
        "would_refuse": flips.would_refuse,
        "would_admit": flips.would_admit,
        "not_decided": flips.not_decided,
    })
}
