//! Limits that change, on a real server: each version decides as the reference, memory and states in hand do.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Key};

use crate::remote::{Remote, is_taken};
use crate::support::changes::{Changing, InHand, Memory, Step, alike, check, live, mixed, one_policy, steps};
use crate::support::spec::Spec;

/// Of each test: a thousand in all.
const LIVES: u32 = 500;

/// The server, where each version is put in force when it is asked.
struct Server<'a> {
    remote: &'a Remote,
    versions: &'a [Spec],
}

impl Changing for Server<'_> {
    fn decide(&mut self, version: usize, t: i64, calls: &[Call; 1]) -> Decision {
        self.remote.bench(one_policy(&self.versions[version])).decide(t, calls)
    }

    fn settle(&mut self, version: usize, t: i64, receipt: Receipt) {
        self.remote.bench(one_policy(&self.versions[version])).settle(t, receipt);
    }
}

fn lives(versions: impl Strategy<Value = Vec<Spec>>, steps: impl Strategy<Value = Vec<Step>>) {
    let (remote, keys, compared) = (Remote::new(), Cell::new(0_u64), Cell::new(0));
    let versions = versions.prop_filter("too large for Redis", |versions| versions.iter().all(is_taken));
    let cases = Config::default().cases.clamp(LIVES, 2 * LIVES);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let ran = TestRunner::new(config).run(&(versions, steps), |(versions, steps)| {
        keys.set(keys.get() + 1);
        let mut server = Server { remote: &remote, versions: &versions };
        let (mut memory, mut in_hand) = (Memory::new(&versions), InHand::new(&versions));
        let machines: &mut [&mut dyn Changing] = &mut [&mut server, &mut memory, &mut in_hand];
        check(live(&versions, &steps, &Key::from(keys.get()), machines), &compared)
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
    assert!(compared.get() >= 3_000, "{} decisions", compared.get());
}

#[test]
fn law_07_changing_limits_of_one_kind() {
    lives(alike(), steps(60, true));
}

#[test]
fn law_07_changing_limits_of_several_kinds() {
    lives(mixed(), steps(60, false));
}
