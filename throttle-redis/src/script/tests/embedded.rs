//! The conformance kit's harness: a machine on a thread of its own, because an embedded Lua stays on
//! its thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use throttle_core::backend::{Answer, Call, ExceptedKey, Exception, KeyStep, Receipt};
use throttle_core::conformance::Harness;
use throttle_core::{
    Backend, BackendError, BackendErrorKind, ConfigError, Decision, Key, PolicySet, Timestamp,
};

use super::machine::{Machine, name};
use crate::script::prepared_set::PreparedSet;

type Work = Box<dyn FnOnce(&mut Machine) + Send>;

/// A store in which keys expire or not. Each step is compared with the core, with every stored byte.
#[derive(Clone)]
pub(super) struct Embedded<const EXPIRES: bool>(Sender<Work>);

impl<const EXPIRES: bool> Embedded<EXPIRES> {
    fn new() -> Self {
        let (sender, receiver) = channel::<Work>();
        std::thread::spawn(move || {
            let mut machine = Machine::of(PolicySet::none());
            machine.expires = EXPIRES;
            machine.slack = if EXPIRES { 0 } else { 2_000 };
            while let Ok(work) = receiver.recv() {
                work(&mut machine);
            }
        });
        Self(sender)
    }

    /// Runs a step on the machine. A difference, which panics there, is an error.
    fn run<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Machine) -> T + Send + 'static,
    ) -> Answer<T> {
        let (sender, receiver) = channel();
        let caught = move |machine: &mut Machine| {
            let done = catch_unwind(AssertUnwindSafe(|| step(machine)));
            let error = |panic: Box<dyn std::any::Any + Send>| {
                let text = panic.downcast_ref::<String>().cloned();
                let error = BackendError::new(BackendErrorKind::Protocol);
                error.with_source(text.unwrap_or_else(|| "a panic".to_owned()))
            };
            let _ = sender.send(done.map_err(error));
        };
        let _ = self.0.send(Box::new(caught));
        Box::pin(async move { receiver.recv().expect("the thread of the machine") })
    }

    fn on<T: Send + 'static>(
        &self,
        prepared: &Arc<PreparedSet>,
        step: impl FnOnce(&mut Machine) -> T + Send + 'static,
    ) -> Answer<T> {
        let prepared = Arc::clone(prepared);
        self.run(move |machine| {
            machine.prepared = prepared;
            step(machine)
        })
    }
}

/// Decides a request together with others in one run, which charge and peek at a key of their own.
fn decide(machine: &mut Machine, calls: &[Call]) -> Decision {
    if calls.iter().all(|call| call.key().is_none()) {
        // A request to which no policy applies sends nothing to the server.
        let policies = machine.set().policies().iter();
        let mut states: Vec<_> = policies.map(|policy| policy.algorithm().fresh()).collect();
        return machine.set().decide(&mut states, Timestamp::EPOCH, calls);
    }
    machine.told_time = !machine.told_time;
    let beside = |cost: u64| -> Vec<Call> {
        let of_another_key = |call: &Call| {
            let other = Call::from(Key::from("beside")).costing(cost);
            match call.own() {
                Some(own) => other.under(Arc::clone(own)),
                None => other.in_tier(call.tier()),
            }
        };
        calls.iter().map(of_another_key).collect()
    };
    if machine.told_time {
        return machine.decide(&[calls.to_vec()]).remove(0);
    }
    let requests = [beside(1), calls.to_vec(), beside(1), beside(0)];
    machine.decide(&requests).remove(1)
}

fn exceptions(machine: &Machine, policy: usize) -> Vec<ExceptedKey> {
    let store = machine.redis.store.borrow();
    let of_policy = store
        .entries
        .iter()
        .filter(|(key, _)| key[0] == policy as u8);
    let listed = of_policy.filter_map(|(key, entry)| {
        let (exception, _) = Exception::from_wire(&entry.value)?;
        let is_over = exception.until.as_micros() <= store.now;
        let key = format!("{key:02x?}");
        (!is_over).then_some(ExceptedKey { key, exception })
    });
    listed.collect()
}

fn forget(machine: &mut Machine, is_forgotten: impl Fn(&[u8]) -> bool) {
    let mut store = machine.redis.store.borrow_mut();
    store.entries.retain(|key, _| !is_forgotten(key));
    machine.model.retain(|key, _| !is_forgotten(key));
}

impl<const EXPIRES: bool> Backend for Embedded<EXPIRES> {
    type Prepared = PreparedSet;
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, set: PolicySet) -> Result<PreparedSet, ConfigError> {
        Ok(PreparedSet::new(set))
    }

    fn set(prepared: &PreparedSet) -> &PolicySet {
        &prepared.set
    }

    fn decide(&self, prepared: &Arc<PreparedSet>, calls: &[Call]) -> Answer<Decision> {
        let calls = calls.to_vec();
        self.on(prepared, move |machine| decide(machine, &calls))
    }

    fn settle(&self, prepared: &Arc<PreparedSet>, receipt: Receipt) -> Answer<()> {
        self.on(prepared, move |machine| machine.settle(&receipt))
    }

    fn run(
        &self,
        prepared: &Arc<PreparedSet>,
        policy: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        if let Err(error) = prepared.set.policy(policy) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.on(prepared, move |machine| match step {
            KeyStep::Reset(key) => {
                forget(machine, |other| other == name(policy, &key));
                Vec::new()
            }
            KeyStep::Except(key, exception) => {
                machine.except(policy, &key, exception);
                Vec::new()
            }
            KeyStep::Strike(key, ban) => {
                let begun = machine.strike(policy, &key, &ban);
                let named = |exception| ExceptedKey {
                    key: String::new(),
                    exception,
                };
                begun.map(named).into_iter().collect()
            }
            KeyStep::Exceptions { most } => {
                let mut listed = exceptions(machine, policy);
                listed.truncate(most);
                listed
            }
        })
    }

    fn reset_all(&self, prefix: &str) -> Answer<()> {
        let prefix = prefix.to_owned();
        self.run(move |machine| {
            let policies = machine.prepared.set.policies().to_vec();
            forget(machine, |key| {
                policies[usize::from(key[0])].name().starts_with(&prefix)
            });
        })
    }

    fn has_exceptions(&self) -> bool {
        true
    }
}

pub(super) struct InLua<const EXPIRES: bool>(Embedded<EXPIRES>);

impl<const EXPIRES: bool> Harness for InLua<EXPIRES> {
    type Backend = Embedded<EXPIRES>;

    fn start() -> Self {
        Self(Embedded::new())
    }

    fn backend(&self) -> Embedded<EXPIRES> {
        self.0.clone()
    }

    fn set_time(&self, now: Timestamp) {
        let moved = self.0.run(move |machine| machine.go_to(now.as_micros()));
        drop(moved);
    }
}
