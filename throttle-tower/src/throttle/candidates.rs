//! The candidates of a layer.

use std::sync::Arc;

use throttle_core::{Backend, ConfigError};

use super::layer::ThrottleLayer;
use super::steps::ask_candidate::check_candidate;
use crate::candidate::{Candidate, Candidates, Flips};

impl<B: Backend> ThrottleLayer<B> {
    /// Asks the limits of `layer` about each request of this layer, and counts where they would
    /// decide otherwise: [`flips`](Self::flips) returns the counts under `name`. No decision of
    /// this layer changes, and no response waits. See [`candidate`](mod@crate::candidate) for what
    /// it decides. Defaults to no candidate.
    ///
    /// Give it a store of its own: in memory any layer of [`ThrottleLayer::new`] has one, on Redis
    /// use another key prefix. A memory store holds up to a million keys, unless it is
    /// [built](throttle_core::MemoryBuilder::max_keys) for less. Where it is full, the candidate's
    /// keys share budgets, and those of this layer do not.
    ///
    /// Call it before the layer is cloned or applied, and before `metrics`, which then reports
    /// `throttle_candidate_total`, and `dashboard`, whose page then shows the counts. A layer may
    /// have several candidates; each costs about as much as a limit.
    ///
    /// # Errors
    ///
    /// If there is a candidate of this name, if `layer` has its keys where this layer has them, or
    /// if one of its limits needs to see responses: one on requests in flight, refunds, `strike_if` and
    /// `settled_later`. A store behind a [`BoxBackend`](throttle_core::BoxBackend) on one side only
    /// is not recognized.
    pub fn candidate<C: Backend>(
        self,
        name: impl Into<String>,
        layer: ThrottleLayer<C>,
    ) -> Result<Self, ConfigError> {
        let name = name.into();
        layer.current.with(|shared| check_candidate(shared))?;
        let trial = Arc::new(layer);
        self.changed(|shared| {
            let mut all: Candidates = shared.options.observers.find().cloned().unwrap_or_default();
            all.add(Candidate {
                name: name.into(),
                counts: Arc::default(),
                trial,
                is_of_rules: false,
            })?;
            all.check(&shared.backend)?;
            shared.options.observers = shared.options.observers.with(all);
            Ok(())
        })
    }

    /// Returns what the [candidate](Self::candidate) of this name would have done so far, for all
    /// clones of this layer; `None` if there is none.
    #[must_use]
    pub fn flips(&self, name: &str) -> Option<Flips> {
        let named = |candidate: &&Candidate| *candidate.name == *name;
        self.current.with(|shared| {
            let all: &Candidates = shared.options.observers.find()?;
            Some(all.0.iter().find(named)?.counts.read())
        })
    }
}
