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
//! Most cases check one of eleven numbered laws. Law 1, for example, is that a refused request and
//! a peek change nothing. The name of such a test gives the law, the case and, if the case runs on
//! each algorithm, the algorithm: `conformance::law_01_deny_never_consumes::gcra`. The other cases,
//! `contract_…`, check the rest of the [contract](Backend). All cases are also public functions,
//! for another test runner.
//!
//! # What is compared with what
//!
//! Some cases send a few requests and check one rule. Others replay a long pseudo-random trace, and
//! compare every field of every decision with that of a model:
//! [`PolicySet::decide`](crate::PolicySet::decide) on states that are never forgotten. The traces
//! are the same in every run.
//!
//! The kit checks four details of the contract:
//!
//! * A call is decided by its own parameters: those of its tier in the set it is decided against,
//!   or those it [brings](crate::backend::Call::under). A key has one state, which names the
//!   parameters that wrote it, and only a charge writes it anew, as in
//!   [`PolicySet::decide`](crate::PolicySet::decide).
//! * A state may be dropped as soon as the kit's clock shows that it cannot be distinguished from a
//!   fresh one, and never before. A store that expires keys by a clock of its own must not do so
//!   while the kit's clock stands still.
//! * If the clock steps back to before the instant at which a dropped state became fresh, a
//!   decision may be made without that state. [`law_07_forgetting_and_stepping_back_is_bounded`]
//!   states how much this may admit.
//! * A charge that is settled for more than was taken debits a dropped key as it debits an unused
//!   one.
//!
//! # Stability
//!
//! The kit is exempt from semantic versioning: cases are added and made stricter in any release.

mod block_on;
mod charges;
mod clock;
mod clones_and_dropped_calls;
mod composition;
mod consumption;
mod exact_answers;
mod fixture;
mod forgetting;
mod isolation;
mod model;
mod parameters;
mod peeks;
mod race;
mod random;
mod sample;
mod suite;
mod trace;

use std::future::Future;

use crate::backend::Backend;
use crate::time::Timestamp;

pub use block_on::block_on;
pub use charges::{
    law_10_composites_settle_what_they_charged, law_10_debit_is_bounded,
    law_10_local_charges_are_left_alone, law_10_never_into_a_later_window,
    law_10_refund_gives_back_once, law_10_settle_corrects,
};
pub use clock::{
    law_07_backward_clock_buys_nothing, law_07_changed_limit_counts_former_use,
    law_07_forgetting_and_stepping_back_is_bounded, law_07_forward_jump_buys_one_burst,
    law_07_two_clocks_buy_nothing_twice,
};
pub use clones_and_dropped_calls::{
    contract_clones_share_the_store, contract_dropped_futures_charge_at_most_once,
    contract_each_set_decides_by_its_own_parameters, contract_sets_of_every_size,
    contract_skipped_policies,
};
pub use composition::{
    law_05_all_charges_every_member_or_none, law_05_any_charges_by_its_rule,
    law_05_nested_charges_all_or_nothing, law_05_saturated_member_under_contention,
};
pub use consumption::{law_01_deny_never_consumes, law_01_peek_never_consumes};
pub use exact_answers::{
    law_02_retry_is_tight, law_02_waits_with_a_reserve_are_tight, law_03_remaining_is_exact,
    law_03_remaining_with_a_reserve_is_exact, law_04_reset_is_exact,
};
pub use forgetting::{
    law_09_denied_stay_denied, law_09_expired_is_as_new, law_09_forgetting_is_invisible,
};
pub use isolation::{
    law_11_keys_are_injective, law_11_policies_are_isolated, law_11_reset_all_by_prefix,
    law_11_reset_one_key,
};
pub use parameters::{
    law_01_other_parameters_consume_nothing, law_02_waits_under_other_parameters_are_tight,
    law_06_racers_under_all_parameters_share_one_budget,
    law_09_keys_keep_what_they_used_under_gone_parameters,
};
pub use peeks::{
    law_01_peek_answers_as_a_charge_and_charges_nothing,
    law_01_peeks_in_a_set_stand_for_charged_calls,
};
pub use race::{law_06_exactly_k, law_06_exactly_k_of_mixed_costs};
pub use sample::Sample;
pub use trace::{
    law_08_composites_equal_the_model, law_08_parameters_equal_the_model,
    law_08_parameters_in_composites_equal_the_model, law_08_traces_equal_the_model,
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

    /// Starts an empty store for one test. Tests run at the same time, so stores on one server must
    /// be kept apart, for example by a prefix.
    #[must_use]
    fn start() -> Self;

    /// Returns a handle on the store, which reads the clock that [`set_time`](Self::set_time) sets.
    fn backend(&self) -> Self::Backend;

    /// Sets the clock, in either direction. If the store is remote, the backend must send this time
    /// to it with each call. The kit never calls this method during a decision.
    fn set_time(&self, now: Timestamp);

    /// Runs a future to completion on the calling thread; several threads may call. Override it for
    /// a backend that needs a runtime. Defaults to [`block_on`].
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future)
    }
}
