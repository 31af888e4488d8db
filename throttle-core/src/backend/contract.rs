use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::key_step::{ExceptedKey, KeyStep};
use super::receipt::Receipt;
use crate::backend_error::BackendError;
use crate::call::Call;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// The future of a rare step, such as a reset or the list of a policy's exceptions.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// Stores state, reads the time, and decides a whole set of limits in one atomic step.
///
/// The six required methods are a whole backend. The provided ones serve layers and queues; add
/// them when you need what they say. [Write a backend](super#write-a-backend) lists the steps.
///
/// # Example
///
/// A backend over a map. It has every algorithm and composition, because it locks its states and
/// lets [`PolicySet::decide`] and [`ReceiptItem::apply_to`](super::ReceiptItem::apply_to) change
/// them. It has no exceptions for single keys, and forgets no key.
///
/// ```
/// use std::collections::HashMap;
/// use std::future::{Ready, ready};
/// use std::sync::{Arc, Mutex};
///
/// use throttle_core::algorithm::State;
/// use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
/// use throttle_core::{
///     Algorithm, Backend, BackendError, Clock, ConfigError, Decision, Key, ManualClock, PolicySet,
/// };
///
/// #[derive(Clone, Default)]
/// struct MapBackend {
///     /// By the policy's name, because sets share the budgets of policies of one name.
///     states: Arc<Mutex<HashMap<(String, Key), State>>>,
///     clock: ManualClock,
/// }
///
/// /// The state of an unused key names its parameters, so that other tiers read it as unused, too.
/// fn unused(by: &Algorithm) -> State {
///     by.fresh().written_under(by)
/// }
///
/// impl Backend for MapBackend {
///     type Prepared = PolicySet;
///     type Decide = Ready<Result<Decision, BackendError>>;
///     type Done = Ready<Result<(), BackendError>>;
///
///     fn prepare(&self, set: PolicySet) -> Result<PolicySet, ConfigError> {
///         Ok(set)
///     }
///
///     fn set(prepared: &PolicySet) -> &PolicySet {
///         prepared
///     }
///
///     fn decide(&self, set: &Arc<PolicySet>, calls: &[Call]) -> Self::Decide {
///         if let Err(error) = set.check_keys(calls) {
///             return ready(Err(error));
///         }
///         let mut stored = self.states.lock().unwrap();
///         let (mut ids, mut states) = (Vec::new(), Vec::new());
///         for (policy, call) in set.policies().iter().zip(calls) {
///             // A call without a key skips its policy: its state is not read.
///             let id = call.key().map(|key| (policy.name().to_owned(), key.clone()));
///             let known = id.as_ref().and_then(|id| stored.get(id).cloned());
///             states.push(known.unwrap_or_else(|| unused(call.parameters(policy))));
///             ids.push(id);
///         }
///         let decision = set.decide(&mut states, self.clock.now(), calls);
///         for (id, state) in ids.into_iter().zip(states) {
///             id.map(|id| stored.insert(id, state));
///         }
///         ready(Ok(decision))
///     }
///
///     fn settle(&self, set: &Arc<PolicySet>, receipt: Receipt) -> Self::Done {
///         let mut stored = self.states.lock().unwrap();
///         for item in receipt.items() {
///             let policy = &set.policies()[item.policy()];
///             let id = (policy.name().to_owned(), item.key().clone());
///             let state = stored.entry(id).or_insert_with(|| unused(item.parameters(policy)));
///             item.apply_to(policy, state, self.clock.now());
///         }
///         ready(Ok(()))
///     }
///
///     fn run(
///         &self,
///         set: &Arc<PolicySet>,
///         policy: usize,
///         step: KeyStep,
///     ) -> Answer<Vec<ExceptedKey>> {
///         let ran = set.policy(policy).and_then(|policy| match &step {
///             KeyStep::Reset(key) => {
///                 let id = (policy.name().to_owned(), key.clone());
///                 self.states.lock().unwrap().remove(&id);
///                 Ok(Vec::new())
///             }
///             _ => Err(step.unsupported()),
///         });
///         Box::pin(ready(ran))
///     }
///
///     fn reset_all(&self, prefix: &str) -> Self::Done {
///         let mut stored = self.states.lock().unwrap();
///         stored.retain(|(policy, _), _| !policy.starts_with(prefix));
///         ready(Ok(()))
///     }
/// }
/// # #[cfg(feature = "conformance")]
/// # impl throttle_core::conformance::Harness for MapBackend {
/// #     type Backend = Self;
/// #     fn start() -> Self {
/// #         Self::default()
/// #     }
/// #     fn backend(&self) -> Self {
/// #         self.clone()
/// #     }
/// #     fn set_time(&self, now: throttle_core::Timestamp) {
/// #         self.clock.set(now);
/// #     }
/// # }
/// # #[cfg(feature = "conformance")]
/// # throttle_core::conformance::law_11_keys_are_injective::<MapBackend>();
/// # use throttle_core::{FixedWindow, Limiter, Policy, Rate};
///
/// let set = PolicySet::new(Policy::new("per-user", FixedWindow::new(Rate::per_day(1)))?)?;
/// let limiter = Limiter::new(MapBackend::default(), set)?;
/// let calls = [Call::from(Key::from("ada"))];
/// assert!(limiter.decide(&calls).into_inner()?.is_admitted());
/// assert!(!limiter.decide(&calls).into_inner()?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
/// ## Forgetting
///
/// A store keeps a row until [`State::kept_until`](crate::algorithm::State::kept_until), which says
/// why a decision must not delete rows as soon as they are as unused ones.
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
    ///
    /// A request in which [a key is in two calls](PolicySet::check_keys) of one policy is an error,
    /// and charges nothing.
    fn decide(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Self::Decide;

    /// Gives back or debits the difference between the taken and the used units, each policy in its
    /// own window.
    ///
    /// Items whose [`decided_by`](super::ReceiptItem::decided_by) is not
    /// [`DecidedBy::Store`](crate::DecidedBy::Store) were not charged at the store, and change
    /// nothing there. A backend that decides by a [`LocalShare`](crate::LocalShare) when its store
    /// fails settles those [at the share](crate::LocalShare::settle).
    fn settle(&self, prepared: &Arc<Self::Prepared>, receipt: Receipt) -> Self::Done;

    /// Runs a rare step on the keys of one policy, which `policy` names by its index in the set.
    /// [`KeyStep::Exceptions`] returns the keys that it lists, and [`KeyStep::Strike`] the ban that
    /// it begins, if it begins one. The other steps return an empty list.
    ///
    /// A backend that does not run a step returns the step's [error](KeyStep::unsupported), and
    /// does nothing. Every backend runs [`KeyStep::Reset`].
    ///
    /// # Errors
    ///
    /// If the set has [no policy](PolicySet::policy) of that index, if the store fails, or as the
    /// step says.
    fn run(
        &self,
        prepared: &Arc<Self::Prepared>,
        policy: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>>;

    /// Forgets every key of every policy whose name starts with `prefix`.
    fn reset_all(&self, prefix: &str) -> Self::Done;

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

    /// Returns whether single keys may have exceptions and bans: the backend [runs](Self::run) all
    /// steps. A layer refuses to build a limit with a ban on any other backend. Defaults to
    /// `false`.
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
