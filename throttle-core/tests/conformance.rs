//! Runs the kit on the memory backend, on adapters around it, and on a backend written against the
//! public API alone.

mod support;

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use support::naive::Naive;
use support::restarts::Restarts;
use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::conformance::{self as kit, Harness};
use throttle_core::{
    Backend, BackendError, BoxBackend, ConfigError, Decision, LocalShareBackend, ManualClock,
    MemoryBackend, PolicySet, Timestamp, conformance_tests,
};

struct On<B> {
    backend: B,
    clock: ManualClock,
}

type InMemory = MemoryBackend<ManualClock>;

fn in_memory(max_keys: usize) -> On<InMemory> {
    let clock = ManualClock::default();
    On {
        backend: MemoryBackend::builder()
            .max_keys(max_keys)
            .clock(clock.clone())
            .build(),
        clock,
    }
}

macro_rules! harness {
    ($name:ident: $backend:ty = $start:expr $(, adapter $adapter:literal)? $(, forget $forget:expr)?) => {
        struct $name(On<$backend>);

        impl Harness for $name {
            type Backend = $backend;

            $(const IS_ADAPTER: bool = $adapter;)?

            fn start() -> Self {
                Self($start)
            }

            fn backend(&self) -> $backend {
                self.0.backend.clone()
            }

            fn set_time(&self, now: Timestamp) {
                self.0.clock.set(now);
            }

            $(fn forget(&self, now: Timestamp) {
                let forget: fn(&$backend, Timestamp) = $forget;
                forget(&self.0.backend, now);
            })?
        }
    };
}

mod memory {
    use super::*;

    harness!(Memory: InMemory = in_memory(1_000_000));
    conformance_tests!(Memory);
}

/// All keys in one shard, which is swept all the time.
mod one_shard {
    use super::*;

    harness!(OneShard: InMemory = in_memory(128));
    conformance_tests!(OneShard);
}

/// A store with room for little more than the keys of a trace.
#[test]
fn law_08_traces_in_a_store_of_few_keys() {
    harness!(FewKeys: InMemory = in_memory(32));
    kit::law_08_traces_equal_the_reference::<FewKeys>();
    kit::law_08_parameters_equal_the_reference::<FewKeys>();
}

/// An adapter: the store above decides.
mod boxed {
    use super::*;

    fn start() -> On<BoxBackend> {
        let On { backend, clock } = in_memory(1_000_000);
        On {
            backend: BoxBackend::new(backend),
            clock,
        }
    }

    harness!(Boxed: BoxBackend = start(), adapter true);
    conformance_tests!(Boxed);
}

/// The share of one process: all of each limit.
mod local_share {
    use super::*;

    type Share = LocalShareBackend<ManualClock>;

    fn start() -> On<Share> {
        let On { backend, clock } = in_memory(1_000_000);
        On {
            backend: LocalShareBackend::new(backend, NonZeroU32::MIN),
            clock,
        }
    }

    harness!(Local: Share = start(), adapter true);
    conformance_tests!(Local);
}

/// A store that goes on with its snapshot whenever it may forget.
mod restarts {
    use super::*;

    fn start() -> On<Restarts> {
        let On { backend, clock } = in_memory(1_000_000);
        On {
            backend: Restarts::new(backend, clock.clone()),
            clock,
        }
    }

    harness!(Restarting: Restarts = start(), forget |store, _| store.restart());
    conformance_tests!(Restarting);
}

mod naive {
    use super::*;

    fn start() -> On<Naive> {
        let backend = Naive::default();
        On {
            clock: backend.clock.clone(),
            backend,
        }
    }

    harness!(Stranger: Naive = start(), forget Naive::expire);
    conformance_tests!(Stranger);
}

/// An adapter whose futures do nothing when they are made, are pending at the first poll, and do
/// everything at the second.
mod pending_once {
    use super::*;

    fn start() -> On<Hesitant> {
        let On { backend, clock } = in_memory(1_000_000);
        On {
            backend: Hesitant(backend),
            clock,
        }
    }

    harness!(PendingOnce: Hesitant = start(), adapter true);
    conformance_tests!(PendingOnce);
}

/// A store far too small for its keys: new keys may be refused, but no live key is forgotten.
#[test]
fn conformance_law_09_of_a_full_store() {
    harness!(Small: InMemory = in_memory(16));
    kit::law_09_denied_stay_denied::<Small>();
    kit::law_07_forgetting_and_stepping_back_is_bounded::<Small>();
}

#[derive(Clone)]
struct Hesitant(InMemory);

struct Hesitate<T> {
    step: Option<Box<dyn FnOnce() -> Result<T, BackendError> + Send>>,
    asked: bool,
}

impl<T> Hesitate<T> {
    fn new(step: impl FnOnce() -> Result<T, BackendError> + Send + 'static) -> Self {
        Self {
            step: Some(Box::new(step)),
            asked: false,
        }
    }
}

impl<T> Future for Hesitate<T> {
    type Output = Result<T, BackendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.asked {
            self.asked = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let step = self.step.take().expect("not polled after it was ready");
        Poll::Ready(step())
    }
}

impl Backend for Hesitant {
    type Prepared = <InMemory as Backend>::Prepared;
    type Decide = Hesitate<Decision>;
    type Done = Hesitate<()>;

    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError> {
        self.0.prepare(set)
    }

    fn set(prepared: &Self::Prepared) -> &PolicySet {
        InMemory::set(prepared)
    }

    fn decide(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Self::Decide {
        let (backend, prepared, calls) = (self.0.clone(), Arc::clone(prepared), calls.to_vec());
        Hesitate::new(move || backend.decide(&prepared, &calls).into_inner())
    }

    fn settle(&self, prepared: &Arc<Self::Prepared>, charge: Receipt) -> Self::Done {
        let (backend, prepared) = (self.0.clone(), Arc::clone(prepared));
        Hesitate::new(move || {
            backend.settle_now(&prepared, charge);
            Ok(())
        })
    }

    fn run(
        &self,
        prepared: &Arc<Self::Prepared>,
        policy: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        let (backend, prepared) = (self.0.clone(), Arc::clone(prepared));
        Box::pin(async move {
            Hesitate::new(|| Ok(())).await?;
            backend.run(&prepared, policy, step).await
        })
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        let (backend, prefix) = (self.0.clone(), prefix.to_owned());
        Hesitate::new(move || backend.reset_all(&prefix).into_inner())
    }

    fn has_exceptions(&self) -> bool {
        true
    }
}
