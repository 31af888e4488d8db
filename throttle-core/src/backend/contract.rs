use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use super::receipt::Receipt;
use crate::algorithm::{Ban, Exception};
use crate::backend_error::{BackendError, BackendErrorKind};
use crate::call::Call;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::key::Key;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// The future of a rare step, such as the list of a backend's exceptions.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// A key with an exception.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::{Exception, Treatment};
/// use throttle_core::{Backend, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate, Timestamp};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let memory = MemoryBackend::new();
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let set = Arc::new(memory.prepare(set)?);
/// let exempt = Exception { treatment: Treatment::Exempt, until: Timestamp::MAX };
/// memory.except(&set, 0, &Key::from("ada"), Some(exempt.clone())).await?;
/// let listed = memory.exceptions(&set, 0, 100).await?;
/// assert_eq!((listed[0].key.len(), &listed[0].exception), (32, &exempt));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceptedKey {
    /// What the store calls the key: a digest, unless the store holds readable keys.
    pub key: String,
    /// How the key is treated.
    pub exception: Exception,
}

/// Stores state, reads the time, and decides a whole set of limits in one atomic step.
///
/// # Contract
///
/// ## Atomicity
///
/// [`decide`](Self::decide) reads the clock once and charges what the set's tree says, or nothing
/// at all, as if no other request used the store meanwhile. When N requests race for the last K
/// units of a key, exactly K are admitted.
///
/// ## Exactness
///
/// Decisions are those of this crate's algorithms, bit for bit. A refused request and a peek change
/// nothing that a later decision could observe. A state may be forgotten only when it equals a
/// fresh one.
///
/// ## Sets
///
/// [`prepare`](Self::prepare) may be called while requests run, by several threads at once, and for
/// many sets that have policies in common. A state belongs to the policy's name, in whatever set it
/// is.
///
/// ## Other parameters
///
/// A call carries its parameters, and a key has one state, which names the parameters that wrote
/// it. Other parameters read it as so many used units: those that the writer counts, at most their
/// own capacity. Only a charge writes. So a backend keeps the state as
/// [`PolicySet::decide`](crate::PolicySet::decide) and
/// [`ReceiptItem::apply_to`](super::ReceiptItem::apply_to) have left it, and passes it to the next
/// set unchanged. Bytes keep the names, too, if the backend writes them with
/// [`State::to_wire`](crate::algorithm::State::to_wire) and reads them with
/// [`State::from_wire`](crate::algorithm::State::from_wire).
///
/// ## Reserves
///
/// A call may have to leave [units free](Call::reserving). It is asked with its cost and the
/// reserve together, charged its cost, and reports what is left beyond the reserve.
///
/// ## Peeks
///
/// A call may be a [peek](Call::peeking). It is decided with its cost, as a part of its set, and
/// charged nothing: no state changes.
///
/// ## Time
///
/// The clock may step in either direction, and several clocks may be in use; the algorithms hold
/// their bounds.
///
/// ## Cancellation
///
/// A future may be dropped at any point. The request is then charged once or not at all, and the
/// store stays usable. Even a future that is never polled may have charged already, so await each
/// future where it is created.
///
/// ## Retries
///
/// A backend repeats a step only if the step is known not to have run. Errors state this:
/// [`BackendError::is_uncharged`].
///
/// ## Clones
///
/// Clones share the store.
///
/// The `conformance` feature is a test kit that checks this contract.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate-limit backend",
    label = "expected a backend such as `MemoryBackend`",
    note = "hand over the backend itself: a clone of it shares its store; finish a builder with \
        `.build()`",
    note = "one of your own implements `Backend`, and is `Clone + Send + Sync + 'static`"
)]
pub trait Backend: Clone + Send + Sync + 'static {
    /// A set of limits as this backend runs it.
    type Prepared: Send + Sync + 'static;
    /// The future of one decision.
    type Decide: Future<Output = Result<Decision, BackendError>> + Send + 'static;
    /// The future of a step without a result.
    type Done: Future<Output = Result<(), BackendError>> + Send + 'static;

    /// Prepares a set, to decide requests against it.
    ///
    /// Sets with a policy of the same name share that policy's budgets, and each decides by its own
    /// parameters. Where a backend does not enforce the [parameters of a call](Call::under), it
    /// charges nothing and returns an error whose [source](std::error::Error::source) is a
    /// [`ConfigError`].
    ///
    /// # Errors
    ///
    /// If the backend cannot hold such a set.
    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError>;

    /// The prepared set.
    fn set(prepared: &Self::Prepared) -> &PolicySet;

    /// Decides about one request and charges it. `calls` stand in the order of the set's policies;
    /// policies without a call are skipped.
    fn decide(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Self::Decide;

    /// The decision of [`decide`](Self::decide), if the backend can make it without waiting. The
    /// request is then charged; on `None` it is not. Defaults to `None`.
    fn decide_at_once(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Option<Decision> {
        let _ = (prepared, calls);
        None
    }

    /// Returns the present time of the clock by which [`decide`](Self::decide) would decide these
    /// calls, if it is known without waiting. It may be slightly behind that clock, and is ahead of
    /// it only if that clock has stepped back. Defaults to `None`.
    fn now(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Option<Timestamp> {
        let _ = (prepared, calls);
        None
    }

    /// Decides like [`decide`](Self::decide), as of an instant in the past: for a queued request
    /// that was due then and whose timer woke late. An instant after [`now`](Self::now) counts as
    /// now. A remote store may treat an instant that is more than 100 ms ago as a more recent one.
    ///
    /// To the algorithms, an instant in the past looks like a clock that stepped back, so their
    /// bounds hold.
    ///
    /// Defaults to `decide`. A backend that implements `decide_as_of` implements `now`, too.
    fn decide_as_of(
        &self,
        prepared: &Arc<Self::Prepared>,
        calls: &[Call],
        at: Timestamp,
    ) -> Self::Decide {
        let _ = at;
        self.decide(prepared, calls)
    }

    /// Gives back or debits the difference between the taken and the used units, each policy in its
    /// own window.
    ///
    /// Items whose [`decided_by`](super::ReceiptItem::decided_by) is not
    /// [`DecidedBy::Store`](crate::DecidedBy::Store) were not charged at the store, and change
    /// nothing there. A backend that decides by a [`LocalShare`](crate::LocalShare) when its store
    /// fails settles those [at the share](crate::LocalShare::settle).
    fn settle(&self, prepared: &Arc<Self::Prepared>, receipt: Receipt) -> Self::Done;

    /// Resets one key of the policy at a place in the set. The key is then unused, unless it shares
    /// an overflow bucket of a full store. It must have the parts of the key that was charged:
    /// bytes are not the same part as a text.
    fn reset(&self, prepared: &Arc<Self::Prepared>, policy: usize, key: &Key) -> Self::Done;

    /// Forgets every key of every policy whose name starts with `prefix`.
    fn reset_all(&self, prefix: &str) -> Self::Done;

    /// Sets an exception for one key of the policy at a place in the set, in place of one that
    /// there is; `None` lifts it. What the key has used stays used. Returns an error if the
    /// exception [cannot be](Exception::check), or if there is no room for it: it is never lost
    /// before it is over.
    ///
    /// Every process of the store decides by it from the key's next decision on. A share that
    /// decides while a store fails knows no exceptions. Defaults to an error: the backend
    /// [has none](Self::has_exceptions).
    fn except(
        &self,
        prepared: &Arc<Self::Prepared>,
        policy: usize,
        key: &Key,
        exception: Option<Exception>,
    ) -> Answer<()> {
        let _ = (prepared, policy, key, exception);
        no_exceptions()
    }

    /// Counts a strike of one key of the policy at a place in the set, as [`Ban::strike`] says, in
    /// one atomic step. Returns the ban that it has begun, if it has: of N strikes that race for
    /// the last one before a ban, one begins it. What the key has used stays used.
    /// [Resetting](Self::reset) the key, or [lifting](Self::except) the exception, forgets its
    /// strikes and bans.
    ///
    /// Returns an error if there is no room for it. Defaults to an error: the backend
    /// [has none](Self::has_exceptions).
    fn strike(
        &self,
        prepared: &Arc<Self::Prepared>,
        policy: usize,
        key: &Key,
        ban: &Ban,
    ) -> Answer<Option<Exception>> {
        let _ = (prepared, policy, key, ban);
        no_exceptions()
    }

    /// Lists the keys of a policy with an exception that is not over, at most `most` of them.
    /// Defaults to an error: the backend [has none](Self::has_exceptions).
    fn exceptions(
        &self,
        prepared: &Arc<Self::Prepared>,
        policy: usize,
        most: usize,
    ) -> Answer<Vec<ExceptedKey>> {
        let _ = (prepared, policy, most);
        no_exceptions()
    }

    /// Returns whether single keys may have exceptions and bans: the backend implements
    /// [`except`](Self::except), [`strike`](Self::strike) and [`exceptions`](Self::exceptions). A
    /// layer refuses to build a limit with a ban on any other backend. Defaults to `false`.
    fn has_exceptions(&self) -> bool {
        false
    }

    /// Returns how many keys are held, if they are held in this process and counted anyway: layers
    /// show it. Defaults to `None`.
    fn keys_held(&self) -> Option<usize> {
        None
    }

    /// Returns whether a decision can fail. If it can, a layer on this backend requires a rule for
    /// failures. Defaults to `true`.
    fn can_fail(&self) -> bool {
        true
    }
}

fn no_exceptions<T: Send + 'static>() -> Answer<T> {
    let error = BackendError::new(BackendErrorKind::Unsupported).uncharged();
    Box::pin(ready(Err(
        error.with_source("this backend has no exceptions for single keys")
    )))
}
