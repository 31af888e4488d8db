//! Runs the kit on backends with one fault each: every law can be broken, and the case that guards
//! it notices.

mod support;

use std::future::{Future, ready};
use std::marker::PhantomData;
use std::panic::{UnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::naive::{Naive, address, fresh_at, named};
use throttle_core::backend::{Ban, Call, ExceptedKey, Exception, KeyStep, Receipt};
use throttle_core::conformance::{self as kit, Harness};
use throttle_core::{
    AnyCharge, Backend, BackendError, BackendErrorKind, Clock, ConfigError, Cost, Decision, Key,
    KeyPart, Policy, PolicyNode, PolicySet, PolicyTree, Timestamp,
};

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>;

/// The step in which a backend differs from [`Naive`].
trait Fault: Send + Sync + 'static {
    fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
        naive.decide_at(set, calls, naive.clock.now())
    }

    fn decide_later(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Boxed<Decision> {
        let checked = set.check_keys(calls);
        Box::pin(ready(checked.map(|()| Self::decide(naive, set, calls))))
    }

    fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
        naive.settle_at(set, charge, naive.clock.now());
    }

    fn settle_later(naive: &Naive, set: &PolicySet, charge: Receipt) -> Boxed<()> {
        Self::settle(naive, set, &charge);
        Box::pin(ready(Ok(())))
    }

    fn reset(naive: &Naive, set: &PolicySet, policy: usize, key: &Key) {
        naive.forget(&set.policies()[policy], key);
    }

    fn reset_all(naive: &Naive, prefix: &str) {
        naive
            .states
            .lock()
            .unwrap()
            .retain(|(policy, _), _| !policy.starts_with(prefix));
    }

    fn clone_of(naive: &Naive) -> Naive {
        naive.clone()
    }

    fn policy(set: &PolicySet, index: usize) -> Result<&Policy, BackendError> {
        set.policy(index)
    }

    fn decide_at_once(_: &Naive, _: &PolicySet, _: &[Call]) -> Option<Decision> {
        None
    }

    fn now(naive: &Naive) -> Option<Timestamp> {
        Some(naive.clock.now())
    }

    fn decide_as_of(naive: &Naive, set: &PolicySet, calls: &[Call], at: Timestamp) -> Decision {
        naive.decide_at(set, calls, at.min(naive.clock.now()))
    }

    fn except(naive: &Naive, policy: &Policy, key: &Key, exception: Option<Exception>) {
        naive.except_at(policy, key, exception);
    }

    fn strike(naive: &Naive, policy: &Policy, key: &Key, ban: &Ban) -> Option<Exception> {
        naive.strike_at(policy, key, ban, naive.clock.now())
    }

    fn exceptions(naive: &Naive, policy: &Policy, most: usize) -> Vec<ExceptedKey> {
        naive.list(policy, most)
    }

    fn forget(naive: &Naive, at: Timestamp) {
        naive.expire(at);
    }
}

struct Broken<F>(Naive, PhantomData<F>);

impl<F: Fault> Clone for Broken<F> {
    fn clone(&self) -> Self {
        Self(F::clone_of(&self.0), PhantomData)
    }
}

fn done<T: Send + 'static>(answer: T) -> Boxed<T> {
    Box::pin(ready(Ok(answer)))
}

impl<F: Fault> Backend for Broken<F> {
    type Prepared = PolicySet;
    type Decide = Boxed<Decision>;
    type Done = Boxed<()>;

    fn prepare(&self, set: PolicySet) -> Result<PolicySet, ConfigError> {
        Ok(set)
    }

    fn set(prepared: &PolicySet) -> &PolicySet {
        prepared
    }

    fn decide(&self, set: &Arc<PolicySet>, calls: &[Call]) -> Self::Decide {
        F::decide_later(&self.0, set, calls)
    }

    fn decide_at_once(&self, set: &Arc<PolicySet>, calls: &[Call]) -> Option<Decision> {
        F::decide_at_once(&self.0, set, calls)
    }

    fn now(&self, _: &Arc<PolicySet>, _: &[Call]) -> Option<Timestamp> {
        F::now(&self.0)
    }

    fn decide_as_of(&self, set: &Arc<PolicySet>, calls: &[Call], at: Timestamp) -> Self::Decide {
        let checked = set.check_keys(calls);
        Box::pin(ready(
            checked.map(|()| F::decide_as_of(&self.0, set, calls, at)),
        ))
    }

    fn settle(&self, set: &Arc<PolicySet>, charge: Receipt) -> Self::Done {
        F::settle_later(&self.0, set, charge)
    }

    fn run(&self, set: &Arc<PolicySet>, policy: usize, step: KeyStep) -> Boxed<Vec<ExceptedKey>> {
        let naive = &self.0;
        let found = F::policy(set, policy).map(|policy| match step {
            KeyStep::Reset(key) => {
                let index = set.policies().iter().position(|other| other == policy);
                F::reset(naive, set, index.unwrap(), &key);
                Vec::new()
            }
            KeyStep::Except(key, exception) => {
                F::except(naive, policy, &key, exception);
                Vec::new()
            }
            KeyStep::Strike(key, ban) => {
                let begun = F::strike(naive, policy, &key, &ban);
                begun.into_iter().map(|ban| named(&key, ban)).collect()
            }
            KeyStep::Exceptions { most } => F::exceptions(naive, policy, most),
        });
        Box::pin(ready(found))
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        F::reset_all(&self.0, prefix);
        done(())
    }

    fn has_exceptions(&self) -> bool {
        true
    }
}

struct On<F>(Broken<F>);

impl<F: Fault> Harness for On<F> {
    type Backend = Broken<F>;

    fn start() -> Self {
        Self(Broken(Naive::default(), PhantomData))
    }

    fn backend(&self) -> Broken<F> {
        self.0.clone()
    }

    fn set_time(&self, now: Timestamp) {
        self.0.0.clock.set(now);
    }

    fn forget(&self, at: Timestamp) {
        F::forget(&self.0.0, at);
    }
}

/// A fault that overrides one step, the cases that notice it, and the law and the field that they
/// name.
macro_rules! catches {
    (
        $(#[doc = $doc:literal])*
        $fault:ident { $($step:item)* }
        $($case:ident: $law:literal, $field:literal;)+
    ) => {
        $(#[doc = $doc])*
        #[test]
        #[allow(non_snake_case, reason = "named after the fault")]
        fn $fault() {
            struct $fault;
            impl Fault for $fault {
                $($step)*
            }
            $({
                assert_noticed(stringify!($case), kit::$case::<On<$fault>>, $law, $field);
            })+
        }
    };
}

fn assert_noticed(case: &str, run: impl FnOnce() + UnwindSafe, law: &str, field: &str) {
    let Err(panic) = catch_unwind(run) else {
        panic!("{case} notices nothing");
    };
    let message = panic.downcast_ref::<String>().expect("a message");
    let first = message.lines().next().unwrap_or_default();
    assert!(
        first.contains(law) && first.contains(field),
        "{case} must name {law} and {field}: {message}"
    );
}

/// The same keys, each applying policy at the given cost.
fn at_cost(calls: &[Call], cost: u64) -> Vec<Call> {
    let cost = Cost::at_least_one(cost);
    calls
        .iter()
        .map(|call| {
            call.key()
                .map_or(Call::SKIP, |key| Call::new(key.clone(), cost))
        })
        .collect()
}

/// The same calls, of other keys.
fn of_keys(calls: &[Call], other: impl Fn(Option<&Key>) -> Option<Key>) -> Vec<Call> {
    let with = |call: &Call, key: Key| {
        let other = Call::from(key)
            .costing(call.cost())
            .reserving(call.reserve());
        let other = match call.own() {
            Some(own) => other.under(Arc::clone(own)),
            None => other.in_tier(call.tier()),
        };
        if call.is_peek() {
            other.peeking()
        } else {
            other
        }
    };
    calls
        .iter()
        .map(|call| other(call.key()).map_or(Call::SKIP, |key| with(call, key)))
        .collect()
}

fn honest(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
    naive.decide_at(set, calls, naive.clock.now())
}

/// Each policy by itself, one after the other.
fn one_by_one(naive: &Naive, set: &PolicySet, calls: &[Call]) {
    for (policy, call) in set.policies().iter().zip(calls) {
        let alone = PolicySet::new(policy.clone()).unwrap();
        let _ = honest(naive, &alone, std::slice::from_ref(call));
    }
}

catches! {
    /// Refused requests cost one unit.
    ChargesOnDeny {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            if !decision.is_admitted() {
                let _ = honest(naive, set, &at_cost(calls, 1));
            }
            decision
        }
    }
    law_08_traces_equal_the_reference: "law 1, refusals and peeks change nothing", "`remaining`";
}

catches! {
    /// A peek costs one unit.
    PeekCharges {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            if calls.iter().all(|call| call.cost() == 0) {
                let _ = honest(naive, set, &at_cost(calls, 1));
            }
            decision
        }
    }
    law_08_traces_equal_the_reference: "law 1, refusals and peeks change nothing", "`remaining`";
}

/// The same calls, each peek charged its cost.
fn charging(calls: &[Call]) -> Vec<Call> {
    let charging = |call: &Call| {
        let key = call.key()?.clone();
        Some(
            Call::from(key)
                .costing(call.cost())
                .reserving(call.reserve()),
        )
    };
    calls
        .iter()
        .map(|call| charging(call).unwrap_or(Call::SKIP))
        .collect()
}

catches! {
    /// A peek with a cost is a charge.
    PeekWithACostCharges {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            honest(naive, set, &charging(calls))
        }
    }
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

catches! {
    /// A peek answers as a charge does, and leaves its charge in the answer alone.
    PeekSaysThatItCharges {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            match calls.iter().all(|call| call.is_peek()) {
                true => honest(&copy_of(naive), set, &charging(calls)),
                false => honest(naive, set, calls),
            }
        }
    }
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

catches! {
    /// A peek is always admitted, whatever it costs.
    PeekHasNoCost {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let without = |call: &Call| if call.is_peek() { call.clone().costing(0) } else { call.clone() };
            honest(naive, set, &calls.iter().map(without).collect::<Vec<_>>())
        }
    }
    law_08_traces_equal_the_reference: "law 7, a changed limit", "`is_admitted`";
    law_08_parameters_equal_the_reference: "law 2, exact waits", "`is_admitted`";
}

catches! {
    /// A refused peek refuses nothing but itself: the charged calls of its set are charged.
    RefusedPeekIsNoRefusal {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            if !decision.is_admitted() && !calls.iter().all(|call| call.is_peek()) {
                let skipped = |call: &Call| if call.is_peek() { Call::SKIP } else { call.clone() };
                let _ = honest(naive, set, &calls.iter().map(skipped).collect::<Vec<_>>());
            }
            decision
        }
    }
    law_08_compositions_equal_the_reference: "law 1, refusals and peeks change nothing", "`remaining`";
}

catches! {
    /// Every request is of the highest class.
    IgnoresReserves {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let highest: Vec<Call> = calls.iter().map(|call| call.clone().reserving(0)).collect();
            honest(naive, set, &highest)
        }
    }
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

catches! {
    /// The reserve is charged with the cost.
    ChargesTheReserve {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            let reserved: Vec<Call> =
                calls.iter().map(|call| call.clone().costing(call.reserve()).reserving(0)).collect();
            if decision.is_admitted() && calls.iter().all(|call| call.cost() > 0) {
                let _ = honest(naive, set, &reserved);
            }
            decision
        }
    }
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
    law_08_parameters_equal_the_reference: "law 2, exact waits", "`is_admitted`";
}

catches! {
    /// A clock in milliseconds.
    CoarseClock {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let micros = naive.clock.now().as_micros();
            naive.decide_at(set, calls, Timestamp::from_micros(micros - micros.rem_euclid(1_000)))
        }
    }
    law_08_traces_equal_the_reference: "law 4, exact resets", "`reset_after`";
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`reset_after`";
}

catches! {
    /// Keys are forgotten a microsecond before they are as unused ones.
    ExpiresAMicrosecondEarly {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let soon = naive.clock.now() + Duration::from_micros(1);
            naive.states.lock().unwrap().retain(|_, state| fresh_at(state) > soon);
            honest(naive, set, calls)
        }
    }
    law_08_traces_equal_the_reference: "law 9, forgetting is invisible", "`remaining`";
    law_07_forgetting_and_stepping_back_is_bounded: "law 7, forgetting", "units on two clocks that took turns";
}

catches! {
    /// Expiry rounded down to whole seconds.
    ExpiresEarly {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let soon = naive.clock.now() + Duration::from_secs(1);
            naive.states.lock().unwrap().retain(|_, state| fresh_at(state) > soon);
            honest(naive, set, calls)
        }
    }
    law_08_traces_equal_the_reference: "law 9, forgetting is invisible", "`remaining`";
    law_07_forgetting_and_stepping_back_is_bounded: "law 7, forgetting", "units on two clocks that took turns";
}

catches! {
    /// Members of a composite are charged one by one, and stay charged when a later one refuses.
    ChargesPartly {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            if !decision.is_admitted() {
                one_by_one(naive, set, calls);
            }
            decision
        }
    }
    law_08_compositions_equal_the_reference: "law 1, refusals and peeks change nothing", "`remaining`";
    law_05_saturated_member_under_contention: "law 5, all or nothing", "`remaining`";
}

/// The same policies, with another rule where one of them is enough.
fn with_rule(set: &PolicySet, rule: AnyCharge) -> PolicySet {
    let PolicyNode::Any(_) = set.node(0) else {
        return set.clone();
    };
    let members = set.policies().iter().map(|policy| policy.clone().into());
    PolicySet::new(PolicyTree::Any(members.collect(), rule)).unwrap()
}

catches! {
    /// An `any` charges all members that admit, whatever its rule.
    ChargesEveryMember {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            honest(naive, &with_rule(set, AnyCharge::EveryAdmitting), calls)
        }
    }
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`charged`";
}

catches! {
    /// An `any` charges the right member, and says of a request that it was the first one.
    NamesTheFirstMember {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let decision = honest(naive, set, calls);
            let is_charged = decision.is_admitted() && calls.iter().any(|call| call.cost() > 0);
            match set.node(0) {
                PolicyNode::Any(_) if is_charged => honest(&unused(naive), set, calls),
                _ => decision,
            }
        }
    }
    law_08_compositions_equal_the_reference: "law 9, forgetting is invisible", "`remaining`";
}

/// A store without keys, whose clock is the same.
fn unused(naive: &Naive) -> Naive {
    Naive {
        clock: naive.clock.clone(),
        ..Naive::default()
    }
}

/// A store of its own with the same states, whose clock is the same.
fn copy_of(naive: &Naive) -> Naive {
    let states = naive.states.lock().unwrap().clone();
    Naive {
        states: Arc::new(Mutex::new(states)),
        ..unused(naive)
    }
}

catches! {
    /// Policies beyond the third are skipped.
    DecidesThree {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            honest(naive, set, &calls[..calls.len().min(3)])
        }
    }
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

catches! {
    /// Reads, decides and writes in three steps.
    Races {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let apart = copy_of(naive);
            let decision = honest(&apart, set, calls);
            std::thread::sleep(Duration::from_micros(50));
            *naive.states.lock().unwrap() = apart.states.lock().unwrap().clone();
            decision
        }
    }
    law_06_exactly_k: "law 6, exactly K", "units admitted";
    law_05_saturated_member_under_contention: "law 5, all or nothing", "`is_admitted`";
}

catches! {
    /// A state further in the future than a limit allows is taken for garbage.
    DistrustsTheFuture {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let latest = naive.clock.now() + Duration::from_secs(200);
            naive.states.lock().unwrap().retain(|_, state| fresh_at(state) <= latest);
            honest(naive, set, calls)
        }
    }
    law_07_two_clocks_buy_nothing_twice: "law 7, a step back", "`retry_after`";
}

catches! {
    /// After a step back, the wait of a refusal spans only the step.
    WaitsUntilTheClockHasCaughtUp {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let (now, mut latest) = (naive.clock.now(), LATEST.lock().unwrap());
            *latest = now.max(*latest);
            let decision = honest(naive, set, calls);
            let behind = latest.as_micros().abs_diff(now.as_micros());
            match decision.is_admitted() || behind == 0 {
                true => decision,
                false => decision.refused(0, Duration::from_micros(behind)),
            }
        }
    }
    law_08_traces_equal_the_reference: "law", "`retry_after`";
}

/// For this case only: the instant is the process's, not the harness's.
static LATEST: Mutex<Timestamp> = Mutex::new(Timestamp::EPOCH);

catches! {
    /// Idle keys are forgotten, although the clock may step back.
    ForgetsTheHorizon {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let now = naive.clock.now();
            naive.states.lock().unwrap().retain(|_, state| fresh_at(state) > now);
            honest(naive, set, calls)
        }
    }
    law_07_forgetting_and_stepping_back_is_bounded: "law 7, forgetting", "units on two clocks that took turns";
}

catches! {
    /// A key that is used again after its reset has one unit less.
    RemembersForEver {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let now = naive.clock.now();
            let is_over = naive.states.lock().unwrap().iter().any(|((_, key), state)| {
                calls.iter().any(|call| call.key() == Some(key)) && fresh_at(state) <= now
            });
            if is_over {
                let _ = honest(naive, set, &at_cost(calls, 1));
            }
            honest(naive, set, calls)
        }
    }
    law_08_traces_equal_the_reference: "law 9, forgetting is invisible", "`remaining`";
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

catches! {
    /// A full store starts over.
    Amnesty {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let mut states = naive.states.lock().unwrap();
            if states.len() > 1_000 {
                states.clear();
            }
            drop(states);
            honest(naive, set, calls)
        }
    }
    law_09_denied_stay_denied: "law 9, no amnesty", "`is_admitted`";
}

catches! {
    /// A charge is settled twice.
    RefundsTwice {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            honest_settle(naive, set, charge);
            honest_settle(naive, set, charge);
        }
    }
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`remaining`";
}

fn honest_settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
    naive.settle_at(set, charge, naive.clock.now());
}

catches! {
    /// A refund counts at the present instant, no matter when the charge was made.
    RefundsAnyTime {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            let of_now = Naive { clock: naive.clock.clone(), ..Naive::default() };
            let mut calls = vec![Call::SKIP; set.policies().len()];
            for item in charge.items() {
                let taken = Cost::at_least_one(charge.taken(item.policy()));
                calls[item.policy()] = Call::new(item.key().clone(), taken);
            }
            if let Some(charge) = Receipt::of(&honest(&of_now, set, &calls), &calls) {
                honest_settle(naive, set, &charge.actual(0));
            }
        }
    }
    law_10_local_charges_are_left_alone: "law 10, a charge of a share", "`remaining`";
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`is_admitted`";
}

catches! {
    /// Units that were used beyond the charge are not counted.
    NeverDebits {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            if charge.items().iter().all(|item| item.actual() <= item.taken()) {
                honest_settle(naive, set, charge);
            }
        }
    }
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`is_admitted`";
}

catches! {
    /// Units that were used beyond the charge are taken from a later window, too.
    DebitsTheFuture {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            honest_settle(naive, set, charge);
            for item in charge.items().iter().filter(|item| item.actual() > item.taken()) {
                let mut calls = vec![Call::SKIP; set.policies().len()];
                calls[item.policy()] = Call::from(item.key().clone());
                let _ = naive.decide_at(set, &calls, naive.clock.now() + Duration::from_secs(600));
            }
        }
    }
    law_10_local_charges_are_left_alone: "law 10, a charge of a share", "`remaining`";
    law_08_traces_equal_the_reference: "law 10, a charge is used once", "`retry_after`";
}

catches! {
    /// Of the charges of a composite, the first is settled.
    SettlesOne {
        fn settle(naive: &Naive, set: &PolicySet, charge: &Receipt) {
            let before = naive.states.lock().unwrap().clone();
            honest_settle(naive, set, charge);
            for item in charge.items().iter().skip(1) {
                let address = address(&set.policies()[item.policy()], item.key());
                naive.states.lock().unwrap().insert(address.clone(), before[&address].clone());
            }
        }
    }
    law_08_compositions_equal_the_reference: "contract, cancellation", "`reset_after`";
}

/// The texts of a key that has nothing else.
fn texts(key: &Key) -> Option<Vec<&str>> {
    let of = |part| {
        if let KeyPart::Text(text) = part {
            Some(text)
        } else {
            None
        }
    };
    key.expose_parts().map(of).collect()
}

catches! {
    /// The texts of a key are joined by a colon.
    JoinsTexts {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let join = |key: &Key| match texts(key) {
                Some(texts) if texts.len() > 1 => Key::from(texts.join(":").as_str()),
                _ => key.clone(),
            };
            honest(naive, set, &of_keys(calls, |key| key.map(join)))
        }
    }
    law_11_keys_are_injective: "law 11, keys are injective", "`is_admitted`";
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
}

catches! {
    /// Of a long key, only the beginning and the length count.
    CutsLongKeys {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let cut = |key: &Key| {
                let bytes = key.expose_bytes();
                Key::builder().bytes(&bytes[..bytes.len().min(60_000)]).number(bytes.len() as u64).finish()
            };
            honest(naive, set, &of_keys(calls, |key| key.map(cut)))
        }
    }
    law_11_keys_are_injective: "law 11, keys are injective", "`is_admitted`";
}

catches! {
    /// Of a text, the first 128 bytes count.
    CutsTexts {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let cut = |key: &Key| match texts(key).as_deref() {
                Some([text]) if text.len() > 128 => Key::from(&text[..128]),
                _ => key.clone(),
            };
            honest(naive, set, &of_keys(calls, |key| key.map(cut)))
        }
    }
    law_11_keys_are_injective: "law 11, keys are injective", "`is_admitted`";
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
    law_09_traces_of_many_keys_equal_the_reference: "law 3, exact units", "`remaining`";
}

catches! {
    /// Policies are distinguished by the first word of their name.
    JoinsPolicies {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            let [policy] = set.policies() else { return honest(naive, set, calls) };
            let name = policy.name().split(':').next().unwrap_or_default();
            let cut = PolicySet::new(Policy::new(name, *policy.algorithm()).unwrap()).unwrap();
            honest(naive, &cut, calls)
        }
    }
    law_11_policies_are_isolated: "law 11, policies are isolated", "units";
    law_08_parameters_equal_the_reference: "law 3, exact units", "`remaining`";
}

catches! {
    /// A reset does nothing.
    ResetsNothing {
        fn reset(_: &Naive, _: &PolicySet, _: usize, _: &Key) {}
    }
    law_08_traces_equal_the_reference: "law 11, resets", "`remaining`";
}

catches! {
    /// A reset of a key forgets it in every policy.
    ResetsEveryPolicy {
        fn reset(naive: &Naive, set: &PolicySet, _: usize, key: &Key) {
            set.policies().iter().for_each(|policy| naive.forget(policy, key));
        }
    }
    law_08_compositions_equal_the_reference: "law 11, resets", "`remaining`";
}

catches! {
    /// A prefix matches anywhere in the name.
    ResetsTooMuch {
        fn reset_all(naive: &Naive, prefix: &str) {
            naive.states.lock().unwrap().retain(|(policy, _), _| !policy.contains(prefix));
        }
    }
    law_11_reset_all_by_prefix: "law 11, resets", "`remaining`";
}

catches! {
    /// A clone has a store of its own.
    ClonesApart {
        fn clone_of(naive: &Naive) -> Naive {
            copy_of(naive)
        }
    }
    law_08_traces_equal_the_reference: "law 7, a changed limit", "`remaining`";
}

catches! {
    /// One policy is charged when the future is made, the rest when it is polled.
    ChargesInTwoSteps {
        fn decide_later(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Boxed<Decision> {
            let first = PolicySet::new(set.policies()[0].clone()).unwrap();
            let mut rest = calls.to_vec();
            if rest.len() > 1 && rest[0].cost() > 0 {
                let _ = honest(naive, &first, &[std::mem::replace(&mut rest[0], Call::SKIP)]);
            }
            let (naive, set) = (naive.clone(), set.clone());
            Box::pin(async move { Ok(honest(&naive, &set, &rest)) })
        }
    }
    law_11_policies_are_isolated: "law 11, policies are isolated", "`binding`";
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`applies`";
}

/// Notes that a future was dropped before it answered.
struct Unanswered(Option<&'static AtomicBool>);

impl Unanswered {
    fn mark_answered(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(noted) = self.0 {
            noted.store(true, Ordering::SeqCst);
        }
    }
}

catches! {
    /// A request takes the connection of one that was dropped, and fails.
    FailsAfterADroppedFuture {
        fn decide_later(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Boxed<Decision> {
            // For one case only: the flag is the process's, not the harness's.
            static DROPPED: AtomicBool = AtomicBool::new(false);
            let is_charging = calls.iter().any(|call| call.cost() > 0);
            let (naive, set, calls) = (naive.clone(), set.clone(), calls.to_vec());
            let mut unanswered = Unanswered(Some(&DROPPED));
            Box::pin(async move {
                unanswered.mark_answered();
                if is_charging && DROPPED.swap(false, Ordering::SeqCst) {
                    return Err(BackendError::new(BackendErrorKind::Unavailable));
                }
                Ok(honest(&naive, &set, &calls))
            })
        }
    }
    law_08_parameters_equal_the_reference: "", "the backend failed";
}

catches! {
    /// Requests without a key share one key.
    SkipsNoRequest {
        fn decide(naive: &Naive, set: &PolicySet, calls: &[Call]) -> Decision {
            honest(naive, set, &of_keys(calls, |key| Some(key.cloned().unwrap_or(Key::CONSTANT))))
        }
    }
    law_08_traces_equal_the_reference: "law 3, exact units", "`remaining`";
    law_08_compositions_equal_the_reference: "law 5, a composition charges all or nothing", "`remaining`";
}

/// Faults about parameters that did not write a key's state.
#[path = "conformance_catches/parameters.rs"]
mod parameters;

/// Faults that show in one step of a case only.
#[path = "conformance_catches/in_one_step.rs"]
mod in_one_step;

/// Faults in the steps beside decisions and settlements.
#[path = "conformance_catches/steps.rs"]
mod steps;
