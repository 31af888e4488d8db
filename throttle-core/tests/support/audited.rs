//! What a decision says of the limits that are not audited.

use throttle_core::{Decision, Status};

use super::reference::{Answer, reported};

/// What belongs to limits that are not audited.
pub(crate) fn of_enforced<T: Clone>(audited: &[bool], all: &[T]) -> Vec<T> {
    all.iter()
        .zip(audited)
        .filter(|(_, audited)| !**audited)
        .map(|(one, _)| one.clone())
        .collect()
}

/// The decision as it is if there are no audited limits.
pub(crate) fn enforced_part(audited: &[bool], decision: &Decision) -> (Answer, Vec<Status>) {
    let mut answer = reported(decision);
    answer.members = of_enforced(audited, &answer.members);
    answer.binding = answer
        .binding
        .map(|place| place - audited[..place].iter().filter(|audited| **audited).count());
    (answer, of_enforced(audited, decision.statuses()))
}
