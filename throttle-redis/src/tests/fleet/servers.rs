//! Servers, which do one thing after the other, and the states of the keys.

use throttle_core::algorithm::State;
use throttle_core::backend::Call;
use throttle_core::{Decision, Gcra, IntoAlgorithm, Key, Policy, PolicySet, Rate, Timestamp};

use super::settings::{CLUSTER, MICRO, Nanos, Settings};
use crate::keyspace::{Keyspace, Placement};
use crate::links::hash_slot::{self, SLOTS};

/// Time is divided so, to see how busy a server is.
pub(super) const BUCKET: Nanos = 100_000 * MICRO;

/// One server, at one address.
#[derive(Default)]
pub(super) struct Server {
    pub(super) is_alive: bool,
    /// When it has done all that it was given.
    free: Nanos,
    /// The work that it was given in each bucket of time.
    pub(super) work: Vec<Nanos>,
    pub(super) waited: Nanos,
    pub(super) served: u64,
    pub(super) slot_questions: u64,
}

impl Server {
    pub(super) fn new(is_alive: bool) -> Self {
        Self {
            is_alive,
            ..Self::default()
        }
    }

    /// Takes on some work. Returns when it begins and when it is done.
    pub(super) fn serve(&mut self, now: Nanos, work: Nanos) -> (Nanos, Nanos) {
        let begin = self.free.max(now);
        self.free = begin + work;
        let bucket = (now / BUCKET) as usize;
        if self.work.len() <= bucket {
            self.work.resize(bucket + 1, 0);
        }
        self.work[bucket] += work;
        self.waited += begin - now;
        self.served += 1;
        (begin, self.free)
    }

    pub(super) fn stand_still(&mut self, until: Nanos) {
        self.free = self.free.max(until);
    }
}

/// Keys with their states at the servers, by the library's own names and slots.
pub(super) struct Keys {
    pub(super) set: PolicySet,
    /// What is asked about each key.
    pub(super) calls: Vec<Call>,
    pub(super) servers: Vec<usize>,
    /// What the store decides about a request that it admits.
    pub(super) admitted: Decision,
    states: Vec<State>,
    unused: State,
}

impl Keys {
    /// Keys in the slots of the simulated servers. Each server of the cluster has as many slots.
    pub(super) fn new(settings: &Settings) -> Self {
        let (units, burst) = settings.limit;
        let algorithm = Gcra::new(Rate::per_second(units))
            .burst(burst)
            .into_algorithm()
            .expect("a rate");
        let policy = Policy::new("per-user", algorithm).expect("a policy");
        let space = Keyspace::new("throttle", Placement::PerKeySlot, b"", false).expect("a prefix");
        let names = space.policy("per-user");
        let (mut calls, mut servers) = (Vec::new(), Vec::new());
        for number in 0_u64.. {
            let key = Key::from(number);
            let slot = hash_slot::of(&space.name(&names, &key));
            let server = usize::from(slot) / (SLOTS / CLUSTER);
            if server < settings.servers {
                calls.push(Call::from(key));
                servers.push(server);
                if calls.len() == settings.keys {
                    break;
                }
            }
        }
        let unused = algorithm.fresh().written_under(&algorithm);
        let set = PolicySet::new(policy).expect("a set");
        Self {
            admitted: set.decide(&mut [unused.clone()], Timestamp::EPOCH, &calls[..1]),
            set,
            states: vec![unused.clone(); calls.len()],
            calls,
            servers,
            unused,
        }
    }

    /// Decides about a key at its server. Returns whether the request is admitted.
    pub(super) fn decide(&mut self, key: usize, now: Nanos) -> bool {
        let (states, calls) = (&mut self.states[key..=key], &self.calls[key..=key]);
        let decision = self.set.decide(states, timestamp(now), calls);
        decision.is_admitted()
    }

    /// Forgets the keys of a server.
    pub(super) fn forget(&mut self, server: usize) {
        for (state, of) in self.states.iter_mut().zip(&self.servers) {
            if *of == server {
                *state = self.unused.clone();
            }
        }
    }
}

pub(super) fn timestamp(now: Nanos) -> Timestamp {
    Timestamp::from_micros((now / MICRO) as i64)
}
