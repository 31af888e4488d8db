use std::fmt;
use std::sync::Arc;

use super::contract::{Answer as Boxed, Backend};
use super::key_step::{ExceptedKey, KeyStep};
use super::receipt::Receipt;
use crate::backend_error::{BackendError, BackendErrorKind};
use crate::call::Call;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// A backend of any type, for applications that choose one at run time. A decision that waits costs
/// one allocation.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::Call;
/// use throttle_core::{Backend, BoxBackend, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate};
///
/// let backend = BoxBackend::new(MemoryBackend::new());
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let prepared = Arc::new(backend.prepare(set)?);
/// let decision = backend.decide_at_once(&prepared, &[Call::from(Key::from("ada"))]);
/// assert_eq!(decision.map(|decision| decision.remaining()), Some(8));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
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
///
/// ```
/// use throttle_core::{Backend, BoxBackend, Gcra, MemoryBackend, Policy, PolicySet, Rate};
///
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let prepared = BoxBackend::new(MemoryBackend::new()).prepare(set.clone())?;
/// assert_eq!(BoxBackend::set(&prepared), &set);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
pub struct BoxPrepared {
    set: PolicySet,
    /// The `Arc<B::Prepared>` of the backend inside.
    inner: Box<dyn std::any::Any + Send + Sync>,
}

impl fmt::Debug for BoxPrepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxPrepared")
            .field("set", &self.set)
            .finish_non_exhaustive()
    }
}

trait ErasedBackend: Send + Sync {
    fn prepare(&self, set: PolicySet) -> Result<BoxPrepared, ConfigError>;
    fn decide(&self, prepared: &BoxPrepared, calls: &[Call]) -> Boxed<Decision>;
    fn decide_at_once(&self, prepared: &BoxPrepared, calls: &[Call]) -> Option<Decision>;
    fn now(&self, prepared: &BoxPrepared, calls: &[Call]) -> Option<Timestamp>;
    fn decide_as_of(
        &self,
        prepared: &BoxPrepared,
        calls: &[Call],
        at: Timestamp,
    ) -> Boxed<Decision>;
    fn settle(&self, prepared: &BoxPrepared, receipt: Receipt) -> Boxed<()>;
    fn run(&self, prepared: &BoxPrepared, policy: usize, step: KeyStep) -> Boxed<Vec<ExceptedKey>>;
    fn reset_all(&self, prefix: &str) -> Boxed<()>;
    fn has_exceptions(&self) -> bool;
    fn keys_held(&self) -> Option<usize>;
    fn can_fail(&self) -> bool;
}

fn inner<B: Backend>(prepared: &BoxPrepared) -> Result<&Arc<B::Prepared>, BackendError> {
    let foreign = "the set was prepared by another backend";
    prepared.inner.downcast_ref().ok_or_else(|| {
        BackendError::new(BackendErrorKind::Protocol)
            .uncharged()
            .with_source(foreign)
    })
}

/// Runs a step on a set of this type of backend.
fn on<B: Backend, T: Send + 'static>(
    prepared: &BoxPrepared,
    step: impl FnOnce(&Arc<B::Prepared>) -> Boxed<T>,
) -> Boxed<T> {
    inner::<B>(prepared).map_or_else(|error| Box::pin(std::future::ready(Err(error))) as _, step)
}

impl<B: Backend> ErasedBackend for B {
    fn prepare(&self, set: PolicySet) -> Result<BoxPrepared, ConfigError> {
        let prepared = Arc::new(Backend::prepare(self, set)?);
        Ok(BoxPrepared {
            set: B::set(&prepared).clone(),
            inner: Box::new(prepared),
        })
    }

    fn decide(&self, prepared: &BoxPrepared, calls: &[Call]) -> Boxed<Decision> {
        on::<B, _>(prepared, |prepared| {
            Box::pin(Backend::decide(self, prepared, calls))
        })
    }

    fn decide_at_once(&self, prepared: &BoxPrepared, calls: &[Call]) -> Option<Decision> {
        Backend::decide_at_once(self, inner::<B>(prepared).ok()?, calls)
    }

    fn now(&self, prepared: &BoxPrepared, calls: &[Call]) -> Option<Timestamp> {
        Backend::now(self, inner::<B>(prepared).ok()?, calls)
    }

    fn decide_as_of(
        &self,
        prepared: &BoxPrepared,
        calls: &[Call],
        at: Timestamp,
    ) -> Boxed<Decision> {
        on::<B, _>(prepared, |prepared| {
            Box::pin(Backend::decide_as_of(self, prepared, calls, at))
        })
    }

    fn settle(&self, prepared: &BoxPrepared, receipt: Receipt) -> Boxed<()> {
        on::<B, _>(prepared, |prepared| {
            Box::pin(Backend::settle(self, prepared, receipt))
        })
    }

    fn run(&self, prepared: &BoxPrepared, policy: usize, step: KeyStep) -> Boxed<Vec<ExceptedKey>> {
        on::<B, _>(prepared, |prepared| {
            Backend::run(self, prepared, policy, step)
        })
    }

    fn reset_all(&self, prefix: &str) -> Boxed<()> {
        Box::pin(Backend::reset_all(self, prefix))
    }

    fn has_exceptions(&self) -> bool {
        Backend::has_exceptions(self)
    }

    fn keys_held(&self) -> Option<usize> {
        Backend::keys_held(self)
    }

    fn can_fail(&self) -> bool {
        Backend::can_fail(self)
    }
}

impl Backend for BoxBackend {
    type Prepared = BoxPrepared;
    type Decide = Boxed<Decision>;
    type Done = Boxed<()>;

    fn prepare(&self, set: PolicySet) -> Result<BoxPrepared, ConfigError> {
        self.0.prepare(set)
    }

    fn set(prepared: &BoxPrepared) -> &PolicySet {
        &prepared.set
    }

    fn decide(&self, prepared: &Arc<BoxPrepared>, calls: &[Call]) -> Self::Decide {
        self.0.decide(prepared, calls)
    }

    fn decide_at_once(&self, prepared: &Arc<BoxPrepared>, calls: &[Call]) -> Option<Decision> {
        self.0.decide_at_once(prepared, calls)
    }

    fn now(&self, prepared: &Arc<BoxPrepared>, calls: &[Call]) -> Option<Timestamp> {
        self.0.now(prepared, calls)
    }

    fn decide_as_of(
        &self,
        prepared: &Arc<BoxPrepared>,
        calls: &[Call],
        at: Timestamp,
    ) -> Self::Decide {
        self.0.decide_as_of(prepared, calls, at)
    }

    fn settle(&self, prepared: &Arc<BoxPrepared>, receipt: Receipt) -> Self::Done {
        self.0.settle(prepared, receipt)
    }

    fn run(
        &self,
        prepared: &Arc<BoxPrepared>,
        policy: usize,
        step: KeyStep,
    ) -> Boxed<Vec<ExceptedKey>> {
        self.0.run(prepared, policy, step)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.0.reset_all(prefix)
    }

    fn has_exceptions(&self) -> bool {
        self.0.has_exceptions()
    }

    fn keys_held(&self) -> Option<usize> {
        self.0.keys_held()
    }

    fn can_fail(&self) -> bool {
        self.0.can_fail()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::{
        Backend, BackendError, BackendErrorKind, BoxBackend, Boxed, Call, KeyStep, PolicySet,
        Receipt, Timestamp,
    };
    use crate::algorithm::{Exception, Gcra, Treatment};
    use crate::key::Key;
    use crate::memory::MemoryBackend;
    use crate::policy::Policy;
    use crate::rate::Rate;

    fn error<T: fmt::Debug>(mut answer: Boxed<T>) -> BackendError {
        match answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Err(error)) => error,
            other => panic!("expected an error: {other:?}"),
        }
    }

    #[test]
    fn a_set_of_another_type_of_backend_is_an_error_and_charges_nothing() {
        let own = BoxBackend::new(MemoryBackend::new());
        let other = BoxBackend::new(own.clone());
        let policy = Policy::new("p", Gcra::new(Rate::per_day(9))).expect("a policy");
        let set = PolicySet::new(policy).expect("a set");
        let foreign = Arc::new(other.prepare(set.clone()).expect("a set"));
        let prepared = Arc::new(own.prepare(set).expect("a set"));
        let calls = [Call::from(Key::from("ada"))];
        let decision = own
            .decide_at_once(&prepared, &calls)
            .expect("memory decides at once");
        let receipt = Receipt::of(&decision, &calls).expect("a charge");
        for error in [
            error(own.decide(&foreign, &calls)),
            error(own.decide_as_of(&foreign, &calls, Timestamp::EPOCH)),
            error(own.settle(&foreign, receipt)),
            error(own.run(&foreign, 0, KeyStep::Reset(Key::from("ada")))),
        ] {
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (BackendErrorKind::Protocol, true),
                "{error}"
            );
            let source = std::error::Error::source(&error)
                .expect("a source")
                .to_string();
            assert_eq!(source, "the set was prepared by another backend");
        }
        assert!(
            own.decide_at_once(&foreign, &calls).is_none() && own.now(&foreign, &calls).is_none()
        );
    }

    #[test]
    fn a_boxed_backend_holds_and_forgets_the_keys_of_the_one_inside() {
        let inside = MemoryBackend::new();
        let boxed = BoxBackend::new(inside.clone());
        let set = |name| {
            PolicySet::new(Policy::new(name, Gcra::new(Rate::per_day(9))).expect("a policy"))
                .expect("a set")
        };
        let prepared = ["a", "b"].map(|name| Arc::new(boxed.prepare(set(name)).expect("a set")));
        for prepared in &prepared {
            assert!(
                boxed
                    .decide_at_once(prepared, &[Call::from(Key::from("ada"))])
                    .is_some()
            );
        }
        assert_eq!((boxed.keys_held(), inside.keys_held()), (Some(2), Some(2)));
        drop(boxed.reset_all("a"));
        assert_eq!((boxed.keys_held(), inside.keys_held()), (Some(1), Some(1)));
        drop(boxed.run(&prepared[1], 0, KeyStep::Reset(Key::from("ada"))));
        assert_eq!(boxed.keys_held(), Some(0));
    }

    #[test]
    fn boxed_backend_has_the_exceptions_of_the_one_inside() {
        let inside = MemoryBackend::new();
        let boxed = BoxBackend::new(inside.clone());
        let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_day(9))).expect("a policy"))
            .expect("a set");
        let prepared = Arc::new(boxed.prepare(set).expect("a set"));
        let blocked = Exception {
            treatment: Treatment::Blocked,
            until: Timestamp::MAX,
        };
        drop(boxed.run(
            &prepared,
            0,
            KeyStep::Except(Key::from("ada"), Some(blocked)),
        ));
        let decision = boxed
            .decide_at_once(&prepared, &[Call::from(Key::from("ada"))])
            .expect("memory decides at once");
        assert!(!decision.is_admitted());
        let mut listing = boxed.run(&prepared, 0, KeyStep::Exceptions { most: 9 });
        let Poll::Ready(Ok(listed)) = listing
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("memory does not wait")
        };
        assert_eq!(listed.len(), 1);
    }

    #[test]
    fn a_boxed_backend_shows_nothing_and_its_set_the_policies() {
        let boxed = BoxBackend::new(MemoryBackend::new());
        assert_eq!(format!("{boxed:?}"), "BoxBackend");
        let set =
            PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9))).expect("a policy"))
                .expect("a set");
        let shown = format!("{:?}", boxed.prepare(set.clone()).expect("a set"));
        assert_eq!(shown, format!("BoxPrepared {{ set: {set:?}, .. }}"));
    }
}
