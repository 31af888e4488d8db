//! Answers that need no call to the store. Only [`decide`](crate::decide) uses them.

mod deny_cache;

use throttle_core::backend::Treatment;
use throttle_core::{Decision, Timestamp};

use crate::script::reply::{Part, is_own, states};
use crate::script::request::Ask;
use deny_cache::{DenyCache, QuestionTime};

/// The refusals that are kept, if the backend keeps any.
#[derive(Default)]
pub(crate) struct Shortcut(Option<DenyCache>);

impl Shortcut {
    /// Keeps up to `refusals`.
    pub(crate) fn new(refusals: usize) -> Self {
        Self((refusals > 0).then(|| DenyCache::new(refusals)))
    }

    /// Returns the refusal of this request if it is still true. `time` is what scripts are given,
    /// `None` if they read the server's clock.
    pub(crate) fn at_once(
        &self,
        ask: &Ask,
        time: impl FnOnce() -> Option<Timestamp>,
    ) -> Option<Decision> {
        self.0
            .as_ref()
            .filter(|_| ask.as_of.is_none() && ask.is_plain())?
            .look(ask, time())
    }

    /// Call this before asking the store.
    pub(crate) fn asking(&self, ask: &Ask) -> Option<QuestionTime> {
        self.0.as_ref().map(|cache| cache.asking(ask))
    }

    /// Keeps the store's decision if it is a refusal.
    pub(crate) fn note(
        &self,
        ask: &Ask,
        part: &Part,
        decision: &Decision,
        asked: Option<QuestionTime>,
    ) {
        let (Some(cache), Some(asked)) = (&self.0, asked) else {
            return;
        };
        // While an exception is in force, no refusal that another limit may end is kept for its
        // key.
        if decision.is_admitted() && is_own(ask, part, |_| true) {
            // A kept refusal of a greater cost is still right, but the remaining units that it
            // reports are out of date.
            cache.forget(&ask.names);
        } else if decision.is_admitted() {
            // A charge by other parameters than the writer's can make a refused key admit earlier.
            ask.names.iter().for_each(|name| cache.clear(name));
        } else if ask.as_of.is_none()
            // So can one of another process, which is not seen here.
            && ask.is_plain()
            && is_own(ask, part, |exception| matches!(exception.treatment, Treatment::Blocked | Treatment::Struck(_)))
            && let Some(states) = states(ask, part)
        {
            cache.keep(ask, decision, states, part.now, asked);
        }
    }

    /// Forgets the refusals of some keys when the returned guard is dropped, so also when a step is
    /// cancelled that may admit what was refused.
    pub(crate) fn forgetting<'a>(
        &'a self,
        names: impl Fn() -> Vec<&'a [u8]> + 'a,
    ) -> impl Drop + 'a {
        OnDrop(move || {
            if let Some(cache) = &self.0 {
                names().into_iter().for_each(|name| cache.clear(name));
            }
        })
    }

    /// Forgets all refusals when the returned guard is dropped.
    pub(crate) fn forgetting_all(&self) -> impl Drop + '_ {
        OnDrop(|| self.0.iter().for_each(DenyCache::clear_all))
    }
}

/// Runs a step when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step that is cancelled may have admitted what was refused.
    #[test]
    fn a_step_runs_when_it_is_dropped_also_by_a_panic() {
        for panics in [false, true] {
            let mut runs = 0;
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _step = OnDrop(|| runs += 1);
                if panics {
                    std::panic::resume_unwind(Box::new(()));
                }
            }));
            assert_eq!((unwound.is_err(), runs), (panics, 1));
        }
    }
}
