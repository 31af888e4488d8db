//! A layer that is asked about the requests of another one.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use throttle_core::{Backend, ConfigError, MemoryBackend};

use super::flips::{FlipCounts, Flips, live_ruling};
use crate::event::{Event, Observer};
use crate::limit::IntoLimitTree;
use crate::throttle::{Ruling, ThrottleLayer};

/// Other limits that are asked about each request of a live layer, to count where they would decide
/// differently. Hand it over with [`observe`](crate::ThrottleBuilder::observe); no decision of the
/// live layer changes, and no response waits. See [`candidate`](mod@crate::candidate) for what it
/// decides.
///
/// Clones are the same candidate, and count together. A candidate may observe several layers, and a
/// layer may have several candidates; each costs about as much as a limit.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Candidate, Constant, Gcra, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let api = |burst| limit("api", Gcra::new(Rate::per_hour(9)).burst(burst)).by(Constant);
/// let v2 = Candidate::in_memory("v2", api(1))?;
/// let throttle = ThrottleLayer::builder(api(3)).observe(v2.clone()).build()?;
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new("hello"))
/// }));
/// for _ in 0..5 {
///     service.clone().oneshot(Request::new(())).await?;
/// }
/// let flips = v2.flips();
/// assert_eq!(
///     (flips.both_admit, flips.would_refuse, flips.both_refuse),
///     (1, 2, 2)
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Candidate<C: Backend = MemoryBackend> {
    name: Arc<str>,
    layer: ThrottleLayer<C>,
    counts: Arc<FlipCounts>,
}

impl Candidate {
    /// Makes a candidate in a store of its own, in this process, with up to a million keys. Where
    /// it is full, the candidate's keys share budgets, and those of the live layer do not. `name`
    /// is what the page shows and metrics have as a label.
    ///
    /// # Errors
    ///
    /// As [`ThrottleLayer::new`], and as [`of`](Self::of).
    pub fn in_memory(
        name: impl Into<String>,
        limits: impl IntoLimitTree,
    ) -> Result<Self, ConfigError> {
        Self::of(name, ThrottleLayer::new(limits)?)
    }
}

impl<C: Backend> Candidate<C> {
    /// Makes a candidate of a layer **with a store of its own**. Nothing checks that: a candidate
    /// on the store of the live layer charges the live budgets, wherever their limits have the same
    /// names. On Redis, use another key prefix.
    ///
    /// The layer may be one of a rule file, which is reloaded while it is a candidate. Where its
    /// store fails, its [`OnError`](crate::OnError) is not used: it decides nothing.
    ///
    /// # Errors
    ///
    /// If a limit of the layer acts on requests that pass through it: a limit on [requests in
    /// flight](crate::InFlight), or one with refunds, `strike_if` or `settled_later`.
    pub fn of(name: impl Into<String>, layer: ThrottleLayer<C>) -> Result<Self, ConfigError> {
        let info = layer.current.with(|shared| shared.version.info().clone());
        let mut limits = info.limits().iter();
        if let Some(limit) = limits.find(|limit| limit.corrects || limit.permits.is_some()) {
            let rule = "InFlight, refunds, strike_if and settled_later do, and a candidate sees \
                no response; leave this limit out of the candidate";
            let value = "a limit that acts on responses";
            let error = ConfigError::new("candidate", value, rule);
            return Err(error.in_policy(limit.name.as_str()));
        }
        Ok(Self {
            name: name.into().into(),
            layer,
            counts: Arc::default(),
        })
    }

    /// Reports the candidate's results through the facade of the `metrics` crate, as
    /// `throttle_candidate_total`, with `layer` as the label `layer`: see
    /// [`metrics`](mod@crate::metrics). Call it before the candidate is cloned or handed over, and
    /// install the recorder before the first request. Defaults to reporting nothing.
    ///
    /// ```
    /// # use throttle_tower::{Candidate, Constant, Gcra, Rate, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let v2 = Candidate::in_memory("v2", limits)?.metrics("api");
    /// assert_eq!(v2.name(), "v2");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn metrics(self, layer: impl Into<String>) -> Self {
        let counts = Arc::new(FlipCounts::reporting(layer.into(), Arc::clone(&self.name)));
        Self { counts, ..self }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the candidate would have done so far to the requests of all layers that it
    /// observes.
    #[must_use]
    pub fn flips(&self) -> Flips {
        self.counts.read()
    }
}

impl<C: Backend> fmt::Debug for Candidate<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("name", &self.name)
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

impl<C: Backend> Observer for Candidate<C> {
    fn decided(&self, event: &Event<'_>) {
        let comparison = Comparison {
            counts: Arc::clone(&self.counts),
            live: live_ruling(event),
            candidate: None,
        };
        let end = move |candidate| comparison.end(candidate);
        let decide = || self.layer.decide_on_trial(event.parts, end);
        // A panic of the candidate's closures is not one of the request.
        let _ = catch_unwind(AssertUnwindSafe(decide));
    }
}

/// FlipCounts a comparison when it is dropped, even if that is before the candidate has decided.
struct Comparison {
    counts: Arc<FlipCounts>,
    live: Ruling,
    candidate: Option<Ruling>,
}

impl Comparison {
    fn end(mut self, candidate: Option<Ruling>) {
        self.candidate = candidate;
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.counts.add(&self.live, self.candidate.as_ref());
    }
}
