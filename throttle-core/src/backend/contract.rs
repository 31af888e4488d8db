use std::future::Future;
use std::sync::Arc;

use super::call::Call;
use super::error::BackendError;
use super::receipt::Receipt;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::key::Key;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// Where state lives and time is read: decides about a whole set of limits in one atomic step.
///
/// # Contract
///
/// ## Atomicity
///
/// [`decide`](Self::decide) reads the clock once and charges what the set's rule says, or nothing at all, as if nobody
/// else used the store meanwhile. N callers that race for the last K units of a key admit exactly K.
///
/// ## Exactness
///
/// Decisions are those of this crate's algorithms, bit for bit. A denied request and a peek change nothing that a later
/// decision could tell. State may be forgotten only when it equals a fresh one.
///
/// ## Time
///
/// The clock may step in either direction, and several may be in use; the algorithms hold their bounds.
///
/// ## Cancellation
///
/// A future may be dropped at any point. Then the request was charged once or not at all, never twice, and the store
/// stays usable. Call and await in one go: a future that is never polled may have charged already.
///
/// ## Retries
///
/// A backend repeats a step only if it is known not to have run. An error says so: [`BackendError::is_uncharged`].
///
/// ## Clones
///
/// share the store.
///
/// The `conformance` feature holds the kit that shows whether a backend keeps this contract.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate-limit backend",
    label = "expected a backend such as `MemoryBackend`",
    note = "hand over the backend itself: a clone of it shares its store; finish a builder with `.build()`",
    note = "one of your own implements `Backend`, and is `Clone + Send + Sync + 'static`"
)]
pub trait Backend: Clone + Send + Sync + 'static {
    /// A set of limits as this backend runs it.
    type Prepared: Send + Sync + 'static;
    /// The answer to one request.
    type Decide: Future<Output = Result<Decision, BackendError>> + Send + 'static;
    /// The end of a step that answers nothing.
    type Done: Future<Output = Result<(), BackendError>> + Send + 'static;

    /// Gets ready to decide about `set`.
    ///
    /// Sets with a policy of the same name share that policy's budgets. Different parameters of a name are refused while a
    /// set with it exists in this process, unless the policy [replaces](crate::Policy::replace_existing) them: then they are
    /// in force for every such set, and what was used stays used (see
    /// [`Algorithm::carry_over`](crate::Algorithm::carry_over)). A [`PolicyRegistry`](crate::PolicyRegistry) does that.
    /// Of a policy with [tiers](crate::Policy::tiered) all tiers are in force side by side, and what a key used in one is
    /// carried over to another by the policy's [rule](crate::Carry), in the same step that charges it there.
    ///
    /// # Errors
    ///
    /// If the backend cannot hold such a set, or a policy's name is in use with other parameters.
    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError>;

    /// The set that was prepared.
    fn set(prepared: &Self::Prepared) -> &PolicySet;

    /// The set with the parameters in force, where another set has [replaced](crate::Policy::replace_existing) some of its
    /// own: decisions are by these. The same `Arc` until they change. Defaults to `None`: those it was prepared with.
    fn in_force(&self, prepared: &Arc<Self::Prepared>) -> Option<Arc<PolicySet>> {
        let _ = prepared;
        None
    }

    /// Decides about one request and charges it. `calls` stand in the order of the set's policies; policies without a
    /// call are skipped.
    fn decide(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Self::Decide;

    /// The answer of [`decide`](Self::decide), if it can be had without waiting. Then the request is charged; on `None`
    /// it is not. Defaults to `None`.
    fn decide_at_once(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Option<Decision> {
        let _ = (prepared, calls);
        None
    }

    /// The present instant of the clock that [`decide`](Self::decide) would decide about these calls by, if it is known
    /// without waiting. It may be a little behind, and is never ahead but where that clock has stepped back. Defaults to
    /// `None`.
    fn now(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Option<Timestamp> {
        let _ = (prepared, calls);
        None
    }

    /// Decides like [`decide`](Self::decide), as of an instant that has passed: for a request that was queued until then and
    /// whose timer woke it late. An instant after [`now`](Self::now) counts as now. A remote store may take one that is more
    /// than 100 ms ago for one that is not.
    ///
    /// Defaults to `decide`; a backend that decides as of other instants has `now`. To the algorithms this is a clock that
    /// stepped back, so it admits no more than they do on any such clock.
    fn decide_as_of(&self, prepared: &Arc<Self::Prepared>, calls: &[Call], at: Timestamp) -> Self::Decide {
        let _ = at;
        self.decide(prepared, calls)
    }

    /// Gives back or debits the difference between what was taken and what was used, each policy in its own window.
    ///
    /// Items that are not of the [decided_by](crate::ReceiptItem::decided_by) [`DecidedBy::Store`](crate::DecidedBy::Store) were not charged at
    /// the store, and change nothing there. A backend that decides by a [`LocalShare`](crate::LocalShare) of its own when
    /// its store fails settles those [at that](crate::LocalShare::settle).
    fn settle(&self, prepared: &Arc<Self::Prepared>, receipt: Receipt) -> Self::Done;

    /// Forgets one key of the policy at a place in the set: it is as if never used, unless a full store has made it share a
    /// bucket with others.
    fn reset(&self, prepared: &Arc<Self::Prepared>, policy: usize, key: &Key) -> Self::Done;

    /// Forgets every key of every policy whose name starts with `prefix`.
    fn reset_all(&self, prefix: &str) -> Self::Done;

    /// Whether a decision can fail. Where it can, whoever builds a layer must say what happens then.
    fn can_fail(&self) -> bool {
        true
    }
}
