use std::borrow::Cow;
use std::future::{Ready, ready};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::backend::{
    Answer, Backend, BackendError, Call, ExceptedKey, KeyStep, Receipt, Treatment,
};
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::local_share::{share_own, shared_call};
use crate::memory::{MemoryBackend, MemorySet};
use crate::set::PolicySet;
use crate::time::{Clock, SystemClock, Timestamp};

/// A backend for a fleet without a store: each of n processes admits [1/n](crate::Algorithm::share)
/// of every limit, in memory. The number of processes is set while the program runs, from wherever
/// it is known, such as an orchestrator.
///
/// It decides by its share all the time, at once and without failing, where a
/// [`LocalShare`](crate::LocalShare) decides while a store fails. Its accuracy is that of the load
/// balancer: a client whose requests all reach one process has an n-th of its limit. A limit below
/// n is a limit of 1 in each process; [`Algorithm::share`](crate::Algorithm::share) lists what that
/// means.
///
/// ```
/// use std::num::NonZeroU32;
/// use std::sync::Arc;
/// use throttle_core::backend::Call;
/// use throttle_core::{
///     Backend, FixedWindow, Key, LocalShareBackend, MemoryBackend, Policy, PolicySet, Rate,
/// };
///
/// let backend = LocalShareBackend::new(MemoryBackend::new(), NonZeroU32::MIN);
/// let set = backend.prepare(PolicySet::new(Policy::new(
///     "p",
///     FixedWindow::new(Rate::per_day(12)),
/// )?)?)?;
/// let set = Arc::new(set);
/// let decide = |call| {
///     backend
///         .decide_at_once(&set, &[call])
///         .expect("it is in memory")
/// };
/// assert_eq!(
///     decide(Call::from(Key::from("ada")).costing(2)).remaining(),
///     10
/// );
/// backend.set_processes(NonZeroU32::new(3).expect("three is not zero"));
/// assert_eq!(decide(Call::peek(Key::from("ada"))).remaining(), 2); // two of four are used
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
///
/// # When the number changes
///
/// Used units stay used, as with any [changed limit](Backend#other-parameters): of a share that
/// became smaller, at most all are used, and a key waits at most as long as the longer of the two
/// shares says. A process that starts has used nothing. So where a fleet grows, the processes may
/// together admit up to the limit once more.
///
/// # What clients are told
///
/// The policy is the whole limit's, because that is what was agreed; what remains, the waits and
/// the resets are this process's. The [effective window](crate::Status::effective_window) of what
/// remains, and the forecasts of queues, go by the pace of the whole limit, so a queued request can
/// wait in vain.
///
/// Clones share the store and the number. A decision takes one lock more than in the
/// [`MemoryBackend`], for reading. After more than some 250 different numbers, decisions hold their
/// keys' shards, as with parameters of keys' own.
#[derive(Clone, Debug)]
pub struct LocalShareBackend<C = SystemClock> {
    memory: MemoryBackend<C>,
    processes: Arc<AtomicU32>,
}

/// A set of limits as a [`LocalShareBackend`] runs it.
///
/// ```
/// use std::num::NonZeroU32;
/// use throttle_core::{
///     Backend, Gcra, LocalShareBackend, MemoryBackend, Policy, PolicySet, Rate, SystemClock,
/// };
///
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let three = NonZeroU32::new(3).expect("three is not zero");
/// let prepared = LocalShareBackend::new(MemoryBackend::new(), three).prepare(set.clone())?;
/// assert_eq!(
///     LocalShareBackend::<SystemClock>::set(&prepared),
///     &set,
///     "the whole limits"
/// );
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct LocalShareSet {
    whole: PolicySet,
    /// The share of one of so many processes. It is made anew by the first decision after the
    /// number has changed.
    share: RwLock<(NonZeroU32, Arc<MemorySet>)>,
}

impl<C: Clock> LocalShareBackend<C> {
    /// The share of one of `processes`. Use `memory` for nothing else: it holds shares under the
    /// names of the limits.
    #[must_use]
    pub fn new(memory: MemoryBackend<C>, processes: NonZeroU32) -> Self {
        Self {
            memory,
            processes: Arc::new(AtomicU32::new(processes.get())),
        }
    }

    /// Sets the number of processes, for all clones. Later decisions go by it.
    pub fn set_processes(&self, processes: NonZeroU32) {
        self.processes.store(processes.get(), Ordering::Relaxed);
    }

    /// Returns the number of processes.
    #[must_use]
    pub fn processes(&self) -> NonZeroU32 {
        NonZeroU32::new(self.processes.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Calls `run` with the share of the present number.
    fn with<R>(
        &self,
        prepared: &LocalShareSet,
        run: impl FnOnce(&Arc<MemorySet>, NonZeroU32) -> R,
    ) -> R {
        let processes = self.processes();
        let share = prepared.share.read();
        if share.0 == processes {
            return run(&share.1, processes);
        }
        drop(share);
        let mut share = prepared.share.write();
        // It cannot fail, because the store has these policies. If it did, the former share would
        // go on.
        if let Ok(next) = self.share_of(&prepared.whole, processes) {
            *share = (processes, Arc::new(next));
        }
        run(&share.1, share.0)
    }

    fn share_of(&self, set: &PolicySet, processes: NonZeroU32) -> Result<MemorySet, ConfigError> {
        let mut set = set.clone();
        set.policies_mut()
            .for_each(|policy| policy.change_algorithms(|algorithm| algorithm.share(processes)));
        self.memory.prepare(set)
    }
}

/// The same calls for the share of one of so many processes.
fn shared(calls: &[Call], processes: NonZeroU32) -> Cow<'_, [Call]> {
    match calls.iter().all(Call::is_usual) {
        true => Cow::Borrowed(calls),
        false => calls
            .iter()
            .map(|call| shared_call(call, processes))
            .collect(),
    }
}

impl<C: Clock> Backend for LocalShareBackend<C> {
    type Prepared = LocalShareSet;
    type Decide = Ready<Result<Decision, BackendError>>;
    type Done = Ready<Result<(), BackendError>>;

    /// # Errors
    ///
    /// As [`MemoryBackend`] does.
    fn prepare(&self, set: PolicySet) -> Result<LocalShareSet, ConfigError> {
        let processes = self.processes();
        let share = Arc::new(self.share_of(&set, processes)?);
        Ok(LocalShareSet {
            whole: set,
            share: RwLock::new((processes, share)),
        })
    }

    fn set(prepared: &LocalShareSet) -> &PolicySet {
        &prepared.whole
    }

    fn decide(&self, prepared: &Arc<LocalShareSet>, calls: &[Call]) -> Self::Decide {
        self.with(prepared, |set, processes| {
            self.memory.decide(set, &shared(calls, processes))
        })
    }

    fn decide_at_once(&self, prepared: &Arc<LocalShareSet>, calls: &[Call]) -> Option<Decision> {
        self.with(prepared, |set, processes| {
            self.memory.decide_at_once(set, &shared(calls, processes))
        })
    }

    fn now(&self, _: &Arc<LocalShareSet>, _: &[Call]) -> Option<Timestamp> {
        Some(self.memory.clock().now())
    }

    fn decide_as_of(
        &self,
        prepared: &Arc<LocalShareSet>,
        calls: &[Call],
        at: Timestamp,
    ) -> Self::Decide {
        self.with(prepared, |set, processes| {
            self.memory.decide_as_of(set, &shared(calls, processes), at)
        })
    }

    /// Settles by the share of the present number: after a change, a charge of the former one is
    /// settled as one of a changed limit.
    fn settle(&self, prepared: &Arc<LocalShareSet>, mut receipt: Receipt) -> Self::Done {
        self.with(prepared, |set, processes| {
            receipt
                .items
                .iter_mut()
                .for_each(|item| share_own(&mut item.own, processes));
            self.memory.settle_now(set, receipt);
        });
        ready(Ok(()))
    }

    /// An exception's limit is shared, too. The limits of exceptions are listed as the share that
    /// they were set to.
    fn run(
        &self,
        prepared: &Arc<LocalShareSet>,
        policy: usize,
        mut step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        self.with(prepared, |set, processes| {
            if let KeyStep::Except(_, Some(exception)) = &mut step
                && let Treatment::Limit(limit) = &mut exception.treatment
            {
                *limit = Arc::new(limit.share(processes));
            }
            self.memory.run(set, policy, step)
        })
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.memory.reset_all(prefix)
    }

    fn has_exceptions(&self) -> bool {
        true
    }

    fn keys_held(&self) -> Option<usize> {
        self.memory.keys_held()
    }

    fn can_fail(&self) -> bool {
        false
    }
}
