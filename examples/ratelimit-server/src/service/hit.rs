use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Cost, Policy, Status};

use crate::limits::{Counted, Hits, Match};

/// One key of one policy in a request, with the descriptors that have found it.
pub struct Hit {
    pub policy: usize,
    pub found: Match,
    pub hits: Hits,
    pub standing: Standing,
}

/// Where a hit stands after the decision.
#[derive(Clone, Copy, Default)]
pub struct Standing {
    /// Whether its limit would refuse the request.
    pub refuses: bool,
    pub remaining: u64,
    pub capacity: u64,
    /// Until the same request is admitted, or until something comes back.
    pub reset: Duration,
    pub wait: Option<Duration>,
}

impl Hit {
    /// What the store is asked. No wait helps where nothing is admitted: the only unit of its policy
    /// is not enough.
    pub fn call(&self) -> Call {
        let (more, key) = (u64::from(self.found.denies()), self.found.key.clone());
        let call = match self.hits {
            Hits::Charge(units) => Call::new(key, Cost::at_least_one(units.saturating_add(more))),
            Hits::Look => Call::new(key, Cost::at_least_one(1 + more)).peeking(),
            Hits::Refund(_) => Call::peek(key),
        };
        match &self.found.under {
            Some(own) => call.under(own.clone()),
            None => call,
        }
    }

    pub fn count(&self) {
        let standing = self.standing;
        let Hits::Charge(hits) = self.hits else {
            return;
        };
        let counted = match standing.refuses {
            true if self.found.is_shadow() => Counted::Watched,
            true => Counted::Over,
            false if standing.remaining < standing.capacity / 5 => Counted::Near,
            false => Counted::Within,
        };
        self.found.counters.count(hits, counted);
    }

    pub fn standing(&self, policy: &Policy, status: &Status) -> Standing {
        let own = self.found.under.as_ref().map(|own| policy.under(own));
        let policy = own.as_ref().unwrap_or(policy);
        let wait = status.retry_after();
        Standing {
            refuses: status.refuses(),
            remaining: if status.refuses() || self.found.denies() {
                0
            } else {
                status.remaining()
            },
            capacity: policy.algorithm().capacity(),
            reset: match wait {
                Some(wait) if status.refuses() => wait,
                _ => status.effective_window(policy),
            },
            wait,
        }
    }
}
