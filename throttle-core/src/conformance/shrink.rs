//! Shortens a failing trace, so that it can be read.

use super::difference::Difference;
use super::step::TraceStep;

/// Replays of one trace at most.
const REPLAYS: usize = 600;

/// A trace that still fails, and how.
pub(super) struct FailingTrace {
    pub(super) steps: Vec<TraceStep>,
    pub(super) difference: Difference,
}

/// Leaves out and simplifies what a failure does not need.
pub(super) fn shrink(
    steps: &[TraceStep],
    difference: Difference,
    replay: impl Fn(&[TraceStep]) -> Result<(), Difference>,
) -> FailingTrace {
    let mut shrinking = Shrinker {
        failing: FailingTrace {
            steps: steps[..=difference.step].to_vec(),
            difference,
        },
        replay,
        left: REPLAYS,
    };
    let mut size = shrinking.failing.steps.len() / 2;
    while size > 0 {
        while shrinking.leave_out(size) {}
        size /= 2;
    }
    while shrinking.simplify() || shrinking.leave_out(1) {}
    shrinking.failing
}

struct Shrinker<F> {
    failing: FailingTrace,
    replay: F,
    left: usize,
}

impl<F: Fn(&[TraceStep]) -> Result<(), Difference>> Shrinker<F> {
    /// Leaves out stretches of so many steps, and returns whether any was left out.
    fn leave_out(&mut self, size: usize) -> bool {
        let mut is_shorter = false;
        let mut end = self.failing.steps.len();
        while end >= size {
            let mut steps = self.failing.steps.clone();
            steps.drain(end - size..end);
            is_shorter |= self.fails(steps);
            end = (end - size).min(self.failing.steps.len());
        }
        is_shorter
    }

    fn simplify(&mut self) -> bool {
        let mut is_simpler = false;
        for index in 0..self.failing.steps.len() {
            let Some(step) = self.failing.steps.get(index) else {
                break;
            };
            for simpler in step.simpler() {
                let mut steps = self.failing.steps.clone();
                steps[index] = simpler;
                if self.fails(steps) {
                    is_simpler = true;
                    break;
                }
            }
        }
        is_simpler
    }

    /// Takes over a trace if it fails, too.
    fn fails(&mut self, mut steps: Vec<TraceStep>) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        match (self.replay)(&steps) {
            Ok(()) => false,
            Err(difference) => {
                steps.truncate(difference.step + 1);
                self.failing = FailingTrace { steps, difference };
                true
            }
        }
    }
}
