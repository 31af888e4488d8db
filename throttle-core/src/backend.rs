use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::receipt::Receipt;
use crate::{ConfigError, Cost, Decision, Key, LimitSet, Timestamp};

/// What a request asks of one policy of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub(crate) key: Option<Key>,
    pub(crate) cost: u64,
    pub(crate) tier: u8,
}

impl Call {
    /// The policy does not apply to this request.
    pub const SKIP: Self = Self { key: None, cost: 0, tier: 0 };

    /// `cost` units for `key`.
    #[must_use]
    pub const fn new(key: Key, cost: Cost) -> Self {
        Self { key: Some(key), cost: cost.get(), tier: 0 }
    }

    /// Looks at `key` without using anything.
    #[must_use]
    pub const fn peek(key: Key) -> Self {
        Self { key: Some(key), cost: 0, tier: 0 }
    }

    /// The same in a tier of the policy, by its [number](crate::Policy::tier_named); 0, the first, unless said otherwise.
    /// A number that the policy has no tier of stands for the first.
    #[must_use]
    pub const fn in_tier(mut self, tier: u8) -> Self {
        self.tier = tier;
        self
    }

    /// The same for so many units; 0 only looks.
    #[must_use]
    pub const fn costing(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// The number of the tier.
    #[must_use]
    pub const fn tier(&self) -> u8 {
        self.tier
    }

    /// The key, unless the policy is skipped.
    #[must_use]
    pub const fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The units asked for; 0 only looks.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

impl From<Key> for Call {
    /// One unit for `key`.
    fn from(key: Key) -> Self {
        Self::new(key, Cost::ONE)
    }
}

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
    /// Sets with a policy of the same name share that policy's budgets. Of different parameters the ones prepared last
    /// are in force, for every such set: what was used stays used (see [`Algorithm::carry_over`](crate::Algorithm::carry_over)).
    /// Of a policy with [tiers](crate::Policy::tiered) all tiers are in force side by side, and what a key used in one is
    /// carried over to another by the policy's [rule](crate::Carry), in the same step that charges it there.
    ///
    /// # Errors
    ///
    /// If the backend cannot hold such a set.
    fn prepare(&self, set: LimitSet) -> Result<Self::Prepared, ConfigError>;

    /// The set that was prepared.
    fn set(prepared: &Self::Prepared) -> &LimitSet;

    /// Decides about one request and charges it. `calls` stand in the order of the set's policies; policies without a
    /// call are skipped.
    fn decide(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Self::Decide;

    /// The answer of [`decide`](Self::decide), if it can be had without waiting. Then the request is charged; on `None`
    /// it is not. Defaults to `None`.
    fn decide_at_once(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Option<Decision> {
        let _ = (prepared, calls);
        None
    }

    /// The present instant of the clock that decisions are made by, if it can be read without waiting. Defaults to `None`.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// The answer of [`decide`](Self::decide) as of an instant that has passed, if it can be had without waiting: for a
    /// request that was queued until then, and whose timer woke it late. Then the request is charged; on `None` it is not.
    /// An instant after [`now`](Self::now) counts as now. Defaults to `None`; a backend that has it has `now`.
    ///
    /// To the algorithms this is a clock that stepped back, so it admits no more than they do on any such clock.
    fn decide_as_of(&self, prepared: &Arc<Self::Prepared>, calls: &[Call], at: Timestamp) -> Option<Decision> {
        let _ = (prepared, calls, at);
        None
    }

    /// Gives back or debits the difference between what was taken and what was used, each policy in its own window.
    ///
    /// Items that are not of the [rung](crate::ReceiptItem::rung) [`Rung::Store`](crate::Rung::Store) were not charged at
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

/// A decision that could not be made.
#[derive(Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    uncharged: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// Why a decision could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store could not be reached.
    Unavailable,
    /// The store did not answer within the deadline.
    Timeout,
    /// Too many decisions were already waiting for the store.
    Saturated,
    /// The store refused the step or answered something that makes no sense.
    Protocol,
    /// Calls to the store are suspended after repeated failures.
    Suspended,
}

impl BackendError {
    /// An error after which the request may have been charged.
    #[must_use]
    pub const fn new(kind: BackendErrorKind) -> Self {
        Self { kind, uncharged: false, source: None }
    }

    /// Adds that the request is known not to have been charged.
    #[must_use]
    pub fn uncharged(mut self) -> Self {
        self.uncharged = true;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Why.
    #[must_use]
    pub const fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Whether the request is known not to have been charged. If not, repeating it might charge it twice.
    #[must_use]
    pub const fn is_uncharged(&self) -> bool {
        self.uncharged
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BackendErrorKind::Unavailable => "the rate-limit store could not be reached",
            BackendErrorKind::Timeout => "the rate-limit store did not answer in time",
            BackendErrorKind::Saturated => "too many decisions are waiting for the rate-limit store",
            BackendErrorKind::Protocol => "the rate-limit store gave an answer that makes no sense",
            BackendErrorKind::Suspended => "calls to the rate-limit store are suspended after repeated failures",
        };
        let charged = if self.uncharged { "nothing was charged" } else { "the request may have been charged" };
        write!(f, "{kind}; {charged}")
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// Any backend, its type erased, for applications that choose one at run time. Costs one allocation for a decision that has
/// to be waited for.
#[derive(Clone)]
pub struct BoxBackend(Arc<dyn ErasedBackend>);

impl BoxBackend {
    /// Erases a backend's type.
    #[must_use]
    pub fn new(backend: impl Backend) -> Self {
        Self(Arc::new(backend))
    }
}

impl fmt::Debug for BoxBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxBackend")
    }
}

/// A set prepared by a [`BoxBackend`].
pub struct BoxPrepared {
    set: LimitSet,
    /// The `Arc<B::Prepared>` of the backend inside.
    inner: Box<dyn std::any::Any + Send + Sync>,
}

impl fmt::Debug for BoxPrepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxPrepared").field("set", &self.set).finish_non_exhaustive()
    }
}

trait ErasedBackend: Send + Sync {
    fn prepare(&self, set: LimitSet) -> Result<BoxPrepared, ConfigError>;
    fn decide(&self, prepared: &BoxPrepared, calls: &[Call]) -> Boxed<Decision>;
    fn decide_at_once(&self, prepared: &BoxPrepared, calls: &[Call]) -> Option<Decision>;
    fn now(&self) -> Option<Timestamp>;
    fn decide_as_of(&self, prepared: &BoxPrepared, calls: &[Call], at: Timestamp) -> Option<Decision>;
    fn settle(&self, prepared: &BoxPrepared, receipt: Receipt) -> Boxed<()>;
    fn reset(&self, prepared: &BoxPrepared, policy: usize, key: &Key) -> Boxed<()>;
    fn reset_all(&self, prefix: &str) -> Boxed<()>;
    fn can_fail(&self) -> bool;
}

fn inner<B: Backend>(prepared: &BoxPrepared) -> Result<&Arc<B::Prepared>, BackendError> {
    let foreign = "the set was prepared by another backend";
    prepared
        .inner
        .downcast_ref()
        .ok_or_else(|| BackendError::new(BackendErrorKind::Protocol).uncharged().with_source(foreign))
}

impl<B: Backend> ErasedBackend for B {
    fn prepare(&self, set: LimitSet) -> Result<BoxPrepared, ConfigError> {
        let prepared = Arc::new(Backend::prepare(self, set)?);
        Ok(BoxPrepared { set: B::set(&prepared).clone(), inner: Box::new(prepared) })
    }

    fn decide(&self, prepared: &BoxPrepared, calls: &[Call]) -> Boxed<Decision> {
        match inner::<B>(prepared) {
            Ok(prepared) => Box::pin(Backend::decide(self, prepared, calls)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn decide_at_once(&self, prepared: &BoxPrepared, calls: &[Call]) -> Option<Decision> {
        Backend::decide_at_once(self, inner::<B>(prepared).ok()?, calls)
    }

    fn now(&self) -> Option<Timestamp> {
        Backend::now(self)
    }

    fn decide_as_of(&self, prepared: &BoxPrepared, calls: &[Call], at: Timestamp) -> Option<Decision> {
        Backend::decide_as_of(self, inner::<B>(prepared).ok()?, calls, at)
    }

    fn settle(&self, prepared: &BoxPrepared, receipt: Receipt) -> Boxed<()> {
        match inner::<B>(prepared) {
            Ok(prepared) => Box::pin(Backend::settle(self, prepared, receipt)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn reset(&self, prepared: &BoxPrepared, policy: usize, key: &Key) -> Boxed<()> {
        match inner::<B>(prepared) {
            Ok(prepared) => Box::pin(Backend::reset(self, prepared, policy, key)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn reset_all(&self, prefix: &str) -> Boxed<()> {
        Box::pin(Backend::reset_all(self, prefix))
    }

    fn can_fail(&self) -> bool {
        Backend::can_fail(self)
    }
}

impl Backend for BoxBackend {
    type Prepared = BoxPrepared;
    type Decide = Boxed<Decision>;
    type Done = Boxed<()>;

    fn prepare(&self, set: LimitSet) -> Result<BoxPrepared, ConfigError> {
        self.0.prepare(set)
    }

    fn set(prepared: &BoxPrepared) -> &LimitSet {
        &prepared.set
    }

    fn decide(&self, prepared: &Arc<BoxPrepared>, calls: &[Call]) -> Self::Decide {
        self.0.decide(prepared, calls)
    }

    fn decide_at_once(&self, prepared: &Arc<BoxPrepared>, calls: &[Call]) -> Option<Decision> {
        self.0.decide_at_once(prepared, calls)
    }

    fn now(&self) -> Option<Timestamp> {
        self.0.now()
    }

    fn decide_as_of(&self, prepared: &Arc<BoxPrepared>, calls: &[Call], at: Timestamp) -> Option<Decision> {
        self.0.decide_as_of(prepared, calls, at)
    }

    fn settle(&self, prepared: &Arc<BoxPrepared>, receipt: Receipt) -> Self::Done {
        self.0.settle(prepared, receipt)
    }

    fn reset(&self, prepared: &Arc<BoxPrepared>, policy: usize, key: &Key) -> Self::Done {
        self.0.reset(prepared, policy, key)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.0.reset_all(prefix)
    }

    fn can_fail(&self) -> bool {
        self.0.can_fail()
    }
}
