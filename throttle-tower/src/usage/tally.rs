//! The charge of one request by one policy: what was taken, what was used of it, and which step
//! follows.

use throttle_core::backend::{Call, Receipt};
use throttle_core::{DecidedBy, Key};

use super::standings::ChargeChange;

/// A step at the store.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a receipt is moved a few times; a box would be one more allocation"
)]
pub(crate) enum Step {
    /// Charges the call as far as something is left, and brings the receipt back to the tally.
    Ask { index: usize, call: Call },
    /// Settles a receipt.
    Settle(Receipt),
    /// Counts a strike of the key.
    Strike {
        index: usize,
        key: Key,
        decided_by: DecidedBy,
    },
}

/// It only decides which [`Step`] is due. Each receipt leaves it once, so each is settled at most
/// once, and only for its own charge.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The policy's, in its set.
    pub(super) index: usize,
    /// `None` if the policy charged nothing and never will: it did not apply, or another member was
    /// charged.
    call: Option<Call>,
    /// What admission took.
    estimate: u64,
    /// What admission took, then each running charge.
    pieces: Vec<Receipt>,
    /// Units in the pieces.
    pub(super) held: u64,
    /// The running total, once the handler has added to it.
    pub(super) used: Option<u64>,
    /// The cost of the running charge that is under way.
    charging: Option<u64>,
    /// The running total at which the next running charge is worth a try, after one got less than
    /// its cost; `None` if that is never.
    next_charge_at: Option<u64>,
    /// The final charge, once it is known.
    end: Option<u64>,
    /// What decided the policy, and counts its strikes.
    decided_by: DecidedBy,
}

impl Tally {
    pub(crate) fn new(index: usize, call: Option<Call>, admission: Option<Receipt>) -> Self {
        let estimate = admission.as_ref().map_or(0, |receipt| receipt.taken(index));
        let pieces = admission.into_iter().collect();
        Self {
            index,
            call,
            estimate,
            pieces,
            held: estimate,
            used: None,
            charging: None,
            next_charge_at: Some(0),
            end: None,
            decided_by: DecidedBy::Store,
        }
    }

    /// Sets what decided the policy. Defaults to the store.
    pub(crate) fn decided_by(self, decided_by: DecidedBy) -> Self {
        Self { decided_by, ..self }
    }

    /// How the charge has changed since admission; `None` if it has not.
    pub(super) fn change(&self) -> Option<ChargeChange> {
        let charged = self.end.unwrap_or(self.held.max(self.used.unwrap_or(0)));
        let call = self.call.as_ref().filter(|_| charged != self.estimate)?;
        Some(ChargeChange {
            index: self.index,
            peek: call.clone().costing(0),
            is_at_store: self.decided_by == DecidedBy::Store,
            debit: charged.saturating_sub(self.estimate),
        })
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// Whether what was used is charged, or may be once the store has answered.
    pub(crate) fn is_covered(&self) -> bool {
        self.call.is_none()
            || self.used.is_none_or(|used| used <= self.held)
            || self.charging.is_some()
    }

    /// Adds what was used. If that exceeds the charge, charges another estimate's worth.
    pub(crate) fn add(&mut self, units: u64, steps: &mut Vec<Step>) {
        self.used = Some(self.used.unwrap_or(0).saturating_add(units));
        self.charge_more(steps);
    }

    fn charge_more(&mut self, steps: &mut Vec<Step>) {
        let (Some(call), Some(used)) = (&self.call, self.used) else {
            return;
        };
        if self.charging.is_some()
            || used <= self.held
            || self.next_charge_at.is_none_or(|at| used < at)
        {
            return;
        }
        let cost = (used - self.held).max(self.estimate);
        self.charging = Some(cost);
        steps.push(Step::Ask {
            index: self.index,
            call: call.clone().costing(cost),
        });
    }

    /// Takes in the receipt of the running charge.
    pub(crate) fn arrived(&mut self, receipt: Option<Receipt>, steps: &mut Vec<Step>) {
        let asked = self.charging.take().unwrap_or(0);
        let got = receipt
            .as_ref()
            .map_or(0, |receipt| receipt.taken(self.index));
        self.pieces.extend(receipt);
        self.held += got;
        if got < asked {
            self.next_charge_at = self.used.unwrap_or(0).checked_add(self.estimate);
        }
        match self.end {
            Some(end) => self.correct(end, steps),
            None => self.charge_more(steps),
        }
    }

    /// Counts a strike of the request's key, if the policy applies to the request.
    pub(crate) fn strike(&self, steps: &mut Vec<Step>) {
        let Some(key) = self.call.as_ref().and_then(Call::key) else {
            return;
        };
        steps.push(Step::Strike {
            index: self.index,
            key: key.clone(),
            decided_by: self.decided_by,
        });
    }

    /// Makes the charge final: at `total`, or else at what was used, or else at the estimate.
    pub(crate) fn close(&mut self, total: Option<u64>, steps: &mut Vec<Step>) {
        if self.end.is_some() {
            return;
        }
        let end = total.or(self.used).unwrap_or(self.estimate);
        self.end = Some(end);
        // The receipt of a running charge has to be waited for.
        if self.charging.is_none() {
            self.correct(end, steps);
        }
    }

    /// Corrects the charge to `end`. The latest piece goes back first, because its window is most
    /// likely still open.
    fn correct(&mut self, end: u64, steps: &mut Vec<Step>) {
        let (mut surplus, missing) = (self.held.saturating_sub(end), end.saturating_sub(self.held));
        let mut pieces = std::mem::take(&mut self.pieces).into_iter().rev();
        if missing > 0 {
            // There is none if the policy charged nothing and never will.
            if let Some(latest) = pieces.next() {
                let actual = latest.taken(self.index).saturating_add(missing);
                steps.push(Step::Settle(latest.actual(actual)));
            }
        }
        for piece in pieces {
            let taken = piece.taken(self.index);
            let back = surplus.min(taken);
            if back == 0 {
                break;
            }
            surplus -= back;
            steps.push(Step::Settle(piece.actual(taken - back)));
        }
    }
}

/// Joins the corrections of several policies that are due together into one step.
pub(super) fn joined(steps: Vec<Step>) -> Vec<Step> {
    let mut joined: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let Step::Settle(mut receipt) = step else {
            joined.push(step);
            continue;
        };
        for other in &mut joined {
            if let Step::Settle(other) = other {
                other.take_over(&mut receipt);
            }
        }
        if !receipt.items().is_empty() {
            joined.push(Step::Settle(receipt));
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use throttle_core::{
        Backend, Cost, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicySet, Rate,
    };

    use super::*;

    const NONE: [u64; 0] = [];

    fn call(cost: u64) -> Call {
        Call::new(Key::from("key"), Cost::new(cost).unwrap())
    }

    /// The receipt of a charge of so many units.
    fn charged(units: u64) -> Option<Receipt> {
        let store = MemoryBackend::builder()
            .clock(ManualClock::default())
            .build();
        let policy = Policy::new("p", Gcra::new(Rate::per_minute(100))).unwrap();
        let set = std::sync::Arc::new(store.prepare(PolicySet::new(policy).unwrap()).unwrap());
        Receipt::of(&store.decide_now(&set, &[call(units)]), &[call(units)])
    }

    /// The costs of the running charges that are due after a change.
    fn asked(change: impl FnOnce(&mut Vec<Step>)) -> Vec<u64> {
        let mut steps = Vec::new();
        change(&mut steps);
        let cost = |step| match step {
            Step::Ask { call, .. } => call.cost(),
            other => panic!("{other:?}"),
        };
        steps.into_iter().map(cost).collect()
    }

    #[test]
    fn strike_counts_where_the_request_was_decided() {
        let local = DecidedBy::Local(throttle_core::BackendErrorKind::Unavailable);
        // A request that is charged afterwards, and one whose charge is final before its response.
        for (cost, admission) in [(0, None), (9, charged(9))] {
            let call = Call::from(Key::from("key")).costing(cost);
            let (mut tally, mut steps) = (
                Tally::new(0, Some(call), admission).decided_by(local),
                Vec::new(),
            );
            tally.close(Some(cost), &mut steps);
            tally.strike(&mut steps);
            assert!(
                matches!(steps[..], [.., Step::Strike { decided_by, .. }] if decided_by == local),
                "{steps:?}"
            );
        }
    }

    #[test]
    fn running_charge_is_the_excess_and_at_least_another_estimate() {
        for (added, charge) in [(10, &NONE[..]), (11, &[10]), (20, &[10]), (21, &[11])] {
            let mut tally = Tally::new(0, Some(call(1)), charged(10));
            assert_eq!(asked(|steps| tally.add(added, steps)), charge, "{added}");
        }
    }

    #[test]
    fn exhausted_limit_is_asked_again_after_another_estimates_worth() {
        for more in [1, 10] {
            let mut tally = Tally::new(0, Some(call(1)), charged(more));
            assert_eq!(asked(|steps| tally.add(25, steps)).len(), 1);
            assert_eq!(
                asked(|steps| tally.arrived(None, steps)),
                NONE,
                "at once it would get nothing again"
            );
            assert_eq!(asked(|steps| tally.add(more - 1, steps)), NONE);
            assert_eq!(asked(|steps| tally.add(1, steps)).len(), 1, "{more} more");
        }
    }

    /// What was taken and what remains of it, of each receipt that is settled.
    fn corrected(change: impl FnOnce(&mut Vec<Step>)) -> Vec<(u64, u64)> {
        let mut steps = Vec::new();
        change(&mut steps);
        let of = |step| match step {
            Step::Settle(receipt) => {
                let [item] = receipt.items() else {
                    panic!("{receipt:?}")
                };
                (item.taken(), item.actual())
            }
            other => panic!("{other:?}"),
        };
        steps.into_iter().map(of).collect()
    }

    /// An estimate of 10, and a running charge of 10 that got 7.
    fn of_two_pieces() -> Tally {
        let mut tally = Tally::new(0, Some(call(1)), charged(10));
        assert_eq!(asked(|steps| tally.add(17, steps)), [10]);
        assert_eq!(asked(|steps| tally.arrived(charged(7), steps)), NONE);
        assert_eq!(
            (tally.index, tally.held, tally.used, tally.is_open()),
            (0, 17, Some(17), true)
        );
        tally
    }

    #[test]
    fn latest_piece_is_corrected_first() {
        for (total, steps) in [
            (Some(20), &[(7, 10)][..]),
            (Some(18), &[(7, 8)]),
            (Some(17), &[]),
            (None, &[]),
            (Some(16), &[(7, 6)]),
            (Some(12), &[(7, 2)]),
            (Some(10), &[(7, 0)]),
            (Some(9), &[(7, 0), (10, 9)]),
            (Some(0), &[(7, 0), (10, 0)]),
        ] {
            let mut tally = of_two_pieces();
            assert_eq!(
                corrected(|steps| tally.close(total, steps)),
                steps,
                "{total:?}"
            );
            assert!(!tally.is_open());
            assert_eq!(corrected(|steps| tally.close(Some(1), steps)), [], "once");
        }
    }

    #[test]
    fn limit_that_charged_nothing_is_not_settled() {
        let mut tally = Tally::new(0, None, None);
        assert_eq!(corrected(|steps| tally.close(Some(5), steps)), []);
    }

    #[test]
    fn charge_that_is_final_waits_for_the_running_one() {
        for (total, got, steps) in [
            (12, Some(10), &[(10, 2)][..]),
            (25, Some(10), &[(10, 15)]),
            (12, None, &[(10, 12)]),
            (5, None, &[(10, 5)]),
        ] {
            let mut tally = Tally::new(0, Some(call(1)), charged(10));
            assert_eq!(asked(|steps| tally.add(15, steps)), [10]);
            assert_eq!(corrected(|steps| tally.close(Some(total), steps)), []);
            assert!(!tally.is_open());
            assert_eq!(
                corrected(|steps| tally.arrived(got.and_then(charged), steps)),
                steps,
                "{total}, {got:?}"
            );
        }
    }

    #[test]
    fn usage_is_covered_until_the_limit_is_known_to_be_exhausted() {
        let mut tally = Tally::new(0, Some(call(1)), charged(10));
        assert!(tally.is_covered(), "nothing was used");
        tally.add(10, &mut Vec::new());
        assert!(tally.is_covered(), "all that was charged");
        tally.add(1, &mut Vec::new());
        assert!(tally.is_covered(), "the charge is under way");
        tally.arrived(None, &mut Vec::new());
        assert!(!tally.is_covered(), "it got nothing");
        let mut elsewhere = Tally::new(0, None, None);
        assert_eq!(asked(|steps| elsewhere.add(99, steps)), NONE);
        assert!(elsewhere.is_covered(), "the limit does not apply");
    }

    #[test]
    fn running_total_that_cannot_grow_is_not_charged_again() {
        let mut tally = Tally::new(0, Some(call(1)), charged(10));
        assert_eq!(
            asked(|steps| tally.add(u64::MAX, steps)),
            [u64::MAX - 10].map(|most| call(1).costing(most).cost())
        );
        assert_eq!(asked(|steps| tally.arrived(None, steps)), NONE);
        assert_eq!(asked(|steps| tally.add(u64::MAX, steps)), NONE);
        assert_eq!(tally.used, Some(u64::MAX));
    }
}
