use serde::Serialize;
use throttle_core::BackendErrorKind;

use super::board::{Board, Moment, PermitBoard, PolicyBoard};
use super::changes::Change;
use super::flows::{Flow, PolicyFlow};
use super::tight_list::{KeyName, TightKey};
use super::tightest::Tightest;
use crate::event::OUTCOMES;
use crate::observe::Offender;
use crate::observe::decider::Decider;

/// What `/data.json` says. Its documentation is that of [`ThrottleLayer::dashboard`](crate::ThrottleLayer::dashboard).
#[derive(Serialize)]
pub(super) struct Data<'a> {
    service: Option<&'a str>,
    reporting: bool,
    running_seconds: u64,
    #[serde(serialize_with = "as_map")]
    outcomes: [u64; OUTCOMES.len()],
    requests: FlowData,
    binding: Option<&'a str>,
    policies: Vec<PolicyData<'a>>,
    tightest: Vec<TightKeyData<'a>>,
    decided_by: DecidedByData,
    rules_changes: Vec<u32>,
    store: StoreData,
    permits: Vec<PermitData<'a>>,
    keys_held: Option<usize>,
    offenders: Vec<OffenderData<'a>>,
}

/// By the second, oldest first.
#[derive(Serialize)]
struct FlowData {
    admitted: Vec<u32>,
    refused: Vec<u32>,
}

#[derive(Serialize)]
struct PolicyData<'a> {
    name: &'a str,
    audited: bool,
    #[serde(flatten)]
    flow: FlowData,
    binding: BindingData,
    queued: u64,
    longest_wait_ms: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct BindingData {
    refused: u64,
    admitted: u64,
}

#[derive(Serialize)]
struct TightKeyData<'a> {
    policy: &'a str,
    key: String,
    left: u64,
    of: u64,
    resets_in_ms: u64,
}

#[derive(Serialize)]
struct DecidedByData {
    now: Option<&'static str>,
    decisions: DecisionsData,
    changes: Vec<ChangeData>,
}

#[derive(Serialize)]
struct DecisionsData {
    store: u64,
    local: u64,
    open: u64,
    closed: u64,
}

#[derive(Serialize)]
struct ChangeData {
    seconds_ago: u32,
    from: Option<&'static str>,
    to: &'static str,
    why: Option<&'static str>,
}

#[derive(Serialize)]
struct StoreData {
    answers: u64,
    failures: u64,
    slowest_ms: u32,
}

#[derive(Serialize)]
struct PermitData<'a> {
    name: &'a str,
    taken: u64,
    most_taken: u64,
    refused: u64,
}

#[derive(Serialize)]
struct OffenderData<'a> {
    policy: &'a str,
    key: String,
    refused: u64,
    shown: Option<&'a str>,
}

/// How many keys are listed.
pub(super) const LISTED: usize = 10;

impl<'a> Data<'a> {
    /// `reporting` is whether a layer reports to the board.
    pub(super) fn of(
        board: &'a Board,
        service: Option<&'a str>,
        offenders: &'a [Offender],
        moment: &Moment,
        reporting: bool,
    ) -> Self {
        let flows = &board.flows;
        let policies = board.policies.iter().zip(&flows.policies);
        let policies: Vec<_> = policies.map(|(policy, flow)| PolicyData::of(policy, flow, moment)).collect();
        let tightest = board.tightest.list(LISTED, moment.micros).into_iter();
        Self {
            service,
            reporting,
            running_seconds: moment.running,
            outcomes: flows.outcomes(),
            requests: FlowData::of(&flows.requests, moment),
            binding: binding(&policies),
            policies,
            tightest: tightest.filter_map(|key| TightKeyData::of(board, &key, moment)).collect(),
            decided_by: DecidedByData::of(board, moment),
            rules_changes: board.rules_changes().into_iter().map(|second| moment.since(second)).collect(),
            store: StoreData {
                answers: moment.sum(&board.store.answers),
                failures: moment.sum(&board.store.failures),
                slowest_ms: moment.most(&board.store.slowest_ms),
            },
            permits: board.permits.iter().map(|permits| PermitData::of(permits, moment)).collect(),
            keys_held: board.keys_held(),
            offenders: offenders.iter().map(|offender| OffenderData::of(offender, &board.tightest)).collect(),
        }
    }
}

/// The policy that refused most as the binding one; where none did, the one that bound most of the admitted requests.
fn binding<'a>(policies: &[PolicyData<'a>]) -> Option<&'a str> {
    let bound = policies.iter().filter(|policy| policy.binding.refused + policy.binding.admitted > 0);
    // The first of equals, as in a decision.
    bound.rev().max_by_key(|policy| policy.binding).map(|policy| policy.name)
}

impl FlowData {
    fn of(flow: &Flow, moment: &Moment) -> Self {
        Self {
            admitted: moment.seconds().map(|second| flow.admitted.get(second)).collect(),
            refused: moment.seconds().map(|second| flow.refused.get(second)).collect(),
        }
    }
}

impl<'a> PolicyData<'a> {
    fn of(policy: &'a PolicyBoard, flow: &PolicyFlow, moment: &Moment) -> Self {
        let (refused, admitted) = (moment.sum(&flow.bound_refused), moment.sum(&flow.bound_admitted));
        Self {
            name: &policy.name,
            audited: policy.is_audited,
            flow: FlowData::of(&flow.flow, moment),
            binding: BindingData { refused, admitted },
            queued: policy.queued(),
            longest_wait_ms: moment.most(&policy.longest_wait_ms),
        }
    }
}

impl<'a> TightKeyData<'a> {
    fn of(board: &'a Board, key: &TightKey, moment: &Moment) -> Option<Self> {
        Some(Self {
            policy: &board.policies.get(key.policy)?.name,
            key: key.name.to_string(),
            left: key.left,
            of: key.of,
            resets_in_ms: key.resets.saturating_sub(moment.micros).div_ceil(1_000),
        })
    }
}

impl DecidedByData {
    fn of(board: &Board, moment: &Moment) -> Self {
        let [store, local, open, closed] = board.flows.deciders.each_ref().map(|decisions| moment.sum(decisions));
        Self {
            now: board.flows.changes.decider().map(Decider::label),
            decisions: DecisionsData { store, local, open, closed },
            changes: board.flows.changes.list().iter().map(|change| ChangeData::of(change, moment)).collect(),
        }
    }
}

impl ChangeData {
    fn of(change: &Change, moment: &Moment) -> Self {
        Self {
            seconds_ago: moment.since(change.second),
            from: change.from.map(Decider::label),
            to: change.to.label(),
            why: change.why.map(BackendErrorKind::label),
        }
    }
}

impl<'a> PermitData<'a> {
    fn of(permits: &'a PermitBoard, moment: &Moment) -> Self {
        let taken = permits.taken();
        // Permits that were taken before the last two minutes, and are still held.
        let most_taken = taken.max(moment.most(&permits.most_taken).into());
        Self { name: &permits.name, taken, most_taken, refused: moment.sum(&permits.refused) }
    }
}

impl<'a> OffenderData<'a> {
    fn of(offender: &'a Offender, names: &Tightest) -> Self {
        let key = offender.digest.map_or(KeyName::Missing, |digest| names.name_of(digest));
        Self {
            policy: offender.policy.as_str(),
            key: key.to_string(),
            refused: offender.refused,
            shown: offender.shown.as_deref(),
        }
    }
}

fn as_map<S: serde::Serializer>(outcomes: &[u64; OUTCOMES.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(OUTCOMES.iter().zip(outcomes))
}
