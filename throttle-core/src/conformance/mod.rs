//! A test kit that checks whether a [`Backend`] keeps its contract.
//!
//! Enable the feature `conformance` in the dev-dependencies, implement [`Harness`] to start a store
//! and set its clock, and run every case as a test with a name of its own:
//!
//! ```
//! use throttle_core::conformance::Harness;
//! use throttle_core::{ManualClock, MemoryBackend, Timestamp, conformance_tests};
//!
//! struct InMemory(MemoryBackend<ManualClock>, ManualClock);
//!
//! impl Harness for InMemory {
//!     type Backend = MemoryBackend<ManualClock>;
//!
//!     fn start() -> Self {
//!         let clock = ManualClock::default();
//!         Self(MemoryBackend::builder().clock(clock.clone()).build(), clock)
//!     }
//!
//!     fn backend(&self) -> Self::Backend {
//!         self.0.clone()
//!     }
//!
//!     fn set_time(&self, now: Timestamp) {
//!         self.1.set(now);
//!     }
//! }
//!
//! conformance_tests!(InMemory);
//! #
//! # throttle_core::conformance::law_11_keys_are_injective::<InMemory>();
//! ```
//!
//! The name of a test gives the law and the case: `conformance::law_08_traces_equal_the_reference`.
//! Most cases run on every algorithm, and name the algorithm that failed. All cases are also public
//! functions, for another test runner.
//!
//! # What is compared with what
//!
//! Most of the kit is one driver. It replays long pseudo-random traces of every step that a backend
//! has: decisions with costs, reserves, tiers and parameters of a key's own, awaited, immediate or
//! as of another instant; peeks, settlements, resets, exceptions, strikes, lists, drains, dropped
//! futures, a clock that steps in either direction, clones of the backend, and a second set with
//! the same policies. The keys are such that careless code would let meet. After each step it
//! compares every field with the reference: [`PolicySet::decide`](crate::PolicySet::decide) on
//! states that are never forgotten. [`law_08_trace_equals_the_reference`] runs it on your own sets.
//!
//! On a difference it shortens the trace, and says which law is broken, which field differs, and by
//! which steps:
//!
//! ```text
//! law 10, a charge is used once: `remaining` is Some(9), and must be Some(8) at the last of these steps
//!   #3 decide Awaited [1 units of [Number(0)]]
//!   #7 decide Awaited [1 units of [Number(0)]]
//!   settle #3 at 0
//!   #9 decide Awaited [0 units of [Number(0)]]
//! of policy_1 (gcra, 7 per 60s, 10)
//! ```
//!
//! The other cases check what no trace holds: races, a store that is full, keys and names that
//! careless code would let meet, more parameters than a byte counts.
//!
//! # When a state may be forgotten
//!
//! A state may be forgotten as soon as it cannot be distinguished from that of an unused key, and
//! never before: from [`Algorithm::fresh_at`](crate::Algorithm::fresh_at) on, and from the end of an
//! exception on. That instant is by the clock that decides.
//!
//! It must live longer where that clock may step back, because a key that is forgotten too early
//! gets a whole capacity again. So a database keeps `fresh_at` in a column, and deletes in a job of
//! its own what has been fresh for as long as its clocks may differ, such as an hour:
//!
//! ```sql
//! DELETE FROM states WHERE fresh_at <= :now - 3600000000
//! ```
//!
//! A decision that deletes rows by its own instant fails
//! [`law_07_forgetting_and_stepping_back_is_bounded`], which states how much a store that forgets may
//! admit. [`Harness::forget`] is the kit's call of that job.
//!
//! A store that expires rows by a clock of its own must not do so while the kit's clock stands
//! still. A charge that is settled for more than was taken debits a forgotten key as it debits an
//! unused one.
//!
//! # Stability
//!
//! The kit is exempt from semantic versioning: cases are added and made stricter in any release.

mod block_on;
mod bounds;
mod difference;
mod hostile_keys;
mod names;
mod races;
mod random;
mod reference;
mod replay;
mod sample;
mod shrink;
mod step;
mod subject;
mod suite;
mod trace;
mod traces;

use std::future::Future;

use crate::backend::Backend;
use crate::time::Timestamp;

pub use block_on::block_on;
pub use bounds::{
    law_07_forgetting_and_stepping_back_is_bounded, law_07_two_clocks_buy_nothing_twice,
    law_09_denied_stay_denied, law_09_keys_keep_what_they_used_under_gone_parameters,
    law_10_local_charges_are_left_alone,
};
pub use names::{
    law_11_keys_are_injective, law_11_policies_are_isolated, law_11_reset_all_by_prefix,
};
pub use races::{
    contract_one_of_racing_strikes_begins_the_ban, law_05_saturated_member_under_contention,
    law_06_exactly_k, law_06_racers_under_all_parameters_share_one_budget,
};
pub use trace::TraceOptions;
pub use traces::{
    law_08_compositions_equal_the_reference, law_08_parameters_equal_the_reference,
    law_08_several_keys_of_a_policy_equal_the_reference, law_08_trace_equals_the_reference,
    law_08_traces_equal_the_reference, law_09_traces_of_many_keys_equal_the_reference,
};

/// How the kit starts a backend and sets its clock. See the [module](self) for an example.
///
/// # Contract
///
/// * Threads share a harness.
/// * [`start`](Self::start) panics if the store cannot be reached. A test that skips itself would
///   prove nothing.
pub trait Harness: Sized + Sync {
    /// The backend to check.
    type Backend: Backend;

    /// Whether a set of several policies is decided in one atomic step. Defaults to `true`.
    ///
    /// Set it to `false` for a backend that charges each policy separately, and gives the charges
    /// back exactly if one policy refuses. The kit then allows two things. A policy of a set may
    /// refuse early while requests race for it. A request whose future was dropped may have charged
    /// only some policies. No limit may be exceeded even then. In traces with such sets, the kit
    /// does not step the clock back.
    const ATOMIC_SETS: bool = true;

    /// Whether the backend answers with a refusal that it keeps. Defaults to `false`.
    ///
    /// Set it to `true` for a backend that reports the limits of a cached refusal which do not
    /// refuse as they were when it was made. In traces of sets of several policies, the kit then
    /// compares only that a request is refused.
    const KEEPS_REFUSALS: bool = false;

    /// Whether the backend passes each step on to another backend, on which the whole kit runs.
    /// Defaults to `false`. If it is `true`, each case runs on one algorithm.
    const IS_ADAPTER: bool = false;

    /// Starts an empty store for one test. Tests run at the same time, so stores on one server must
    /// be kept apart, for example by a prefix.
    #[must_use]
    fn start() -> Self;

    /// Returns a handle on the store, which reads the clock that [`set_time`](Self::set_time) sets.
    fn backend(&self) -> Self::Backend;

    /// Sets the clock, in either direction. If the store is remote, the backend must send this time
    /// to it with each call. The kit never calls this method during a decision.
    fn set_time(&self, now: Timestamp);

    /// Forgets what a store may forget at `now`: each state that [equals a
    /// fresh one](crate::Algorithm::fresh_at) at that instant. The kit calls it between steps, and
    /// does not step the clock back to before `now` after that. Defaults to nothing, for a store
    /// that forgets by itself, or never.
    fn forget(&self, now: Timestamp) {
        let _ = now;
    }

    /// Runs a future to completion on the calling thread; several threads may call. Override it for
    /// a backend that needs a runtime. Defaults to [`block_on`].
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future)
    }
}
