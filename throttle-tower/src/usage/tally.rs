//! One policy's part in one request: what is held for it, what was used of that, and what follows.

use throttle_core::backend::{Call, Receipt};

/// What is to be done at the store.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a receipt is moved a few times; a box would be one more allocation")]
pub(crate) enum Step {
    /// Usage what the call says of what is left, and bring the receipt back to the line.
    Ask { place: usize, call: Call },
    /// Usage what the call says of what is left, for good.
    Charge { place: usize, call: Call },
    /// Settle these.
    Settle(Receipt),
}

/// It never does anything by itself: it says which [`Step`] is due. Each receipt it holds leaves it once, so each is settled
/// at most once, and only for its own charge.
#[derive(Debug)]
pub(crate) struct Tally {
    place: usize,
    /// `None` if the policy charged nothing and never will: it did not apply, or another member paid.
    call: Option<Call>,
    /// What admission took.
    estimate: u64,
    /// What admission took, then each running charge.
    pieces: Vec<Receipt>,
    /// Units in the pieces.
    held: u64,
    /// The running total, once the handler has told one.
    used: Option<u64>,
    /// The cost of the running charge that is on its way.
    asked: Option<u64>,
    /// The running total from which on it is worth asking again, after less was left than was asked for; `None` if there is
    /// no such number.
    patience: Option<u64>,
    /// What it shall have been, once that is final.
    end: Option<u64>,
}

impl Tally {
    pub(crate) fn new(place: usize, call: Option<Call>, admission: Option<Receipt>) -> Self {
        let estimate = admission.as_ref().map_or(0, |receipt| receipt.taken(place));
        let pieces = admission.into_iter().collect();
        Self { place, call, estimate, pieces, held: estimate, used: None, asked: None, patience: Some(0), end: None }
    }

    pub(crate) const fn place(&self) -> usize {
        self.place
    }

    /// Units held now.
    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    pub(crate) const fn used(&self) -> Option<u64> {
        self.used
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// Whether what was used is held, or may be once the store has answered.
    pub(crate) fn is_covered(&self) -> bool {
        self.call.is_none() || self.used.is_none_or(|used| used <= self.held) || self.asked.is_some()
    }

    /// More was used. What outgrows what is held asks for another estimate's worth.
    pub(crate) fn add(&mut self, units: u64, steps: &mut Vec<Step>) {
        self.used = Some(self.used.unwrap_or(0).saturating_add(units));
        self.ask(steps);
    }

    fn ask(&mut self, steps: &mut Vec<Step>) {
        let (Some(call), Some(used)) = (&self.call, self.used) else { return };
        if self.asked.is_some()
            || self.end.is_some()
            || used <= self.held
            || self.patience.is_none_or(|patience| used < patience)
        {
            return;
        }
        let cost = (used - self.held).max(self.estimate);
        self.asked = Some(cost);
        steps.push(Step::Ask { place: self.place, call: call.clone().costing(cost) });
    }

    /// The answer to the running charge.
    pub(crate) fn arrived(&mut self, receipt: Option<Receipt>, steps: &mut Vec<Step>) {
        let asked = self.asked.take().unwrap_or(0);
        let got = receipt.as_ref().map_or(0, |receipt| receipt.taken(self.place));
        self.pieces.extend(receipt);
        self.held += got;
        if got < asked {
            self.patience = self.used.unwrap_or(0).checked_add(self.estimate.max(1));
        }
        match self.end {
            Some(end) => self.correct(end, steps),
            None => self.ask(steps),
        }
    }

    /// Nothing changes any more: it was `total`, or if nobody says so what was used, or if nobody has said that either what
    /// was estimated.
    pub(crate) fn close(&mut self, total: Option<u64>, steps: &mut Vec<Step>) {
        if self.end.is_some() {
            return;
        }
        let end = total.or(self.used).unwrap_or(self.estimate);
        self.end = Some(end);
        // A receipt that is still on its way has to be waited for.
        if self.asked.is_none() {
            self.correct(end, steps);
        }
    }

    /// Makes what is held a charge of `end`. The latest piece goes back first: its window is most likely still open.
    fn correct(&mut self, end: u64, steps: &mut Vec<Step>) {
        let (mut surplus, missing) = (self.held.saturating_sub(end), end.saturating_sub(self.held));
        let mut pieces = std::mem::take(&mut self.pieces).into_iter().rev();
        if missing > 0 {
            match (pieces.next(), &self.call) {
                (Some(latest), _) => {
                    let actual = latest.taken(self.place).saturating_add(missing);
                    steps.push(Step::Settle(latest.actual(actual)));
                }
                // Nothing was reserved: there is no charge to correct.
                (None, Some(call)) => {
                    steps.push(Step::Charge { place: self.place, call: call.clone().costing(missing) });
                }
                (None, None) => {}
            }
        }
        for piece in pieces {
            let taken = piece.taken(self.place);
            let back = surplus.min(taken);
            if back == 0 {
                break;
            }
            surplus -= back;
            steps.push(Step::Settle(piece.actual(taken - back)));
        }
    }
}

/// Corrections of several policies that fall due together travel together.
pub(crate) fn gathered(steps: Vec<Step>) -> Vec<Step> {
    let mut gathered: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let Step::Settle(mut receipt) = step else {
            gathered.push(step);
            continue;
        };
        for other in &mut gathered {
            if let Step::Settle(other) = other {
                other.take_over(&mut receipt);
            }
        }
        if !receipt.items().is_empty() {
            gathered.push(Step::Settle(receipt));
        }
    }
    gathered
}
