//! Limits that change, on a real server: each of them decides as the reference, memory and states in hand do.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Key, PolicySet};

use crate::remote::{Bench, Remote, is_taken};
use crate::support::changes::{Changing, InHand, Memory, Step, alike, check, live, mixed, steps};
use crate::support::spec::{Leaf, Spec};

/// Of each test: a thousand in all.
const LIVES: u32 = 500;

/// The server, with a set for each limit of the name.
struct Server<'a>(Vec<Bench<'a>>);

impl Changing for Server<'_> {
    fn decide(&mut self, limit: usize, t: i64, calls: &[Call; 1]) -> Decision {
        self.0[limit].decide(t, calls)
    }

    fn settle(&mut self, limit: usize, t: i64, receipt: Receipt) {
        self.0[limit].settle(t, receipt);
    }
}

fn lives(limits: impl Strategy<Value = Vec<Spec>>, steps: impl Strategy<Value = Vec<Step>>) {
    let (remote, keys, compared) = (Remote::new(), Cell::new(0_u64), Cell::new(0));
    let limits = limits.prop_filter("too large for Redis", |limits| limits.iter().all(is_taken));
    let cases = Config::default().cases.clamp(LIVES, 2 * LIVES);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let ran = TestRunner::new(config).run(&(limits, steps), |(limits, steps)| {
        keys.set(keys.get() + 1);
        let set = |limit: &Spec| PolicySet::new(limit.policy("limit")).expect("a set");
        let mut server = Server(limits.iter().map(|limit| remote.bench(set(limit))).collect());
        let (mut memory, mut in_hand) = (Memory::new(&limits), InHand::new(&limits));
        let machines: &mut [&mut dyn Changing] = &mut [&mut server, &mut memory, &mut in_hand];
        check(live(&limits, &steps, &Key::from(keys.get()), machines), &compared)
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
