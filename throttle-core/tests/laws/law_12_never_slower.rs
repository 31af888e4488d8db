//! Law 12, never slower than it says: the memory store runs no code of a user under a lock.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{
    Backend, BackendErrorKind, Clock, Gcra, Key, LocalShare, MemoryBackend, Policy, PolicySet,
    PolicyTree, Rate, Timestamp,
};

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// A clock that stops every thread that reads it while `stop` is set.
#[derive(Clone)]
struct Stoppable {
    stop: Arc<Mutex<Option<Stop>>>,
}

struct Stop {
    reached: Sender<()>,
    go_on: Receiver<()>,
}

impl Clock for Stoppable {
    fn now(&self) -> Timestamp {
        let stop = self.stop.lock().unwrap().take();
        if let Some(Stop { reached, go_on }) = stop {
            reached.send(()).unwrap();
            // Released by the test, or the test has ended.
            let _ = go_on.recv();
        }
        T0
    }
}

/// Stops a thread in the clock during `step`, and runs `meanwhile`, which must finish.
fn stopped_in(
    clock: &Stoppable,
    step: impl FnOnce() + Send + 'static,
    meanwhile: impl FnOnce() + Send + 'static,
) {
    let (reached, stopped) = channel();
    let (release, go_on) = channel();
    *clock.stop.lock().unwrap() = Some(Stop { reached, go_on });
    let held_up = thread::spawn(step);
    stopped
        .recv_timeout(Duration::from_secs(60))
        .expect("the step reads the clock");
    let (done, ended) = channel();
    let others = thread::spawn(move || {
        meanwhile();
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(60));
    release.send(()).unwrap();
    held_up.join().expect("the step goes on");
    others.join().expect("the others do not fail");
    ended.expect("the others do not wait for a thread that reads the clock");
}

#[test]
fn law_12_a_thread_that_is_stopped_in_the_clock_blocks_no_other_thread() {
    let clock = Stoppable {
        stop: Arc::default(),
    };
    let backend = MemoryBackend::builder()
        .clock(clock.clone())
        .max_keys(4)
        .build();
    let gcra = |name| Policy::new(name, Gcra::new(Rate::per_minute(60))).unwrap();
    let one = Arc::new(
        backend
            .prepare(PolicySet::new(gcra("one")).unwrap())
            .unwrap(),
    );
    let both = PolicyTree::All(vec![gcra("one").into(), gcra("two").into()]);
    let both = Arc::new(backend.prepare(PolicySet::new(both).unwrap()).unwrap());
    let calls = |key: &str, count: usize| vec![Call::from(Key::from(key)); count];
    let receipt = {
        let decision = backend.decide_now(&one, &calls("settled", 1));
        Receipt::of(&decision, &calls("settled", 1)).unwrap()
    };

    let steps: Vec<Box<dyn FnOnce() + Send>> = vec![
        Box::new({
            let (backend, one, calls) = (backend.clone(), Arc::clone(&one), calls("key", 1));
            move || assert!(backend.decide_now(&one, &calls).is_admitted())
        }),
        Box::new({
            let (backend, both, calls) = (backend.clone(), Arc::clone(&both), calls("key", 2));
            move || assert!(backend.decide_now(&both, &calls).is_admitted())
        }),
        Box::new({
            let (backend, one) = (backend.clone(), Arc::clone(&one));
            move || backend.settle_now(&one, receipt.actual(0))
        }),
    ];
    for step in steps {
        let (backend, one, both) = (backend.clone(), Arc::clone(&one), Arc::clone(&both));
        stopped_in(&clock, step, move || {
            // The same key, other keys, more keys than fit, and all steps that are not decisions.
            for key in ["key", "settled", "a", "b", "c", "d", "e"] {
                let _ = backend.decide_now(&one, &calls(key, 1));
                let _ = backend.decide_now(&both, &calls(key, 2));
            }
            drop(backend.run(&one, 0, KeyStep::Reset(Key::from("key"))));
            drop(backend.reset_all("on"));
            assert!(backend.keys() <= 4);
            assert!(
                backend
                    .prepare(PolicySet::new(gcra("three")).unwrap())
                    .is_ok()
            );
        });
    }
}

#[test]
fn law_12_a_thread_stopped_in_a_share_s_clock_blocks_no_other() {
    let clock = Stoppable {
        stop: Arc::default(),
    };
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_minute(60))).unwrap()).unwrap();
    let share = LocalShare::new(&store, &set, 2.try_into().unwrap()).unwrap();
    let calls = [Call::from(Key::from("key"))];
    let stopped = {
        let (share, calls) = (share.clone(), calls.clone());
        move || {
            assert!(
                share
                    .decide(&calls, BackendErrorKind::Timeout)
                    .is_admitted()
            );
        }
    };
    stopped_in(&clock, stopped, move || {
        assert!(
            share
                .decide(&calls, BackendErrorKind::Timeout)
                .is_admitted()
        );
    });
}

/// A clock that panics once leaves the store as it was, and usable.
#[test]
fn law_12_a_clock_that_panics_leaves_no_lock_behind() {
    #[derive(Clone)]
    struct Panics(Arc<Mutex<bool>>);

    impl Clock for Panics {
        fn now(&self) -> Timestamp {
            let panics = std::mem::take(&mut *self.0.lock().unwrap());
            assert!(!panics, "the clock fails");
            T0
        }
    }

    let clock = Panics(Arc::default());
    let backend = MemoryBackend::builder().clock(clock.clone()).build();
    let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_minute(60))).unwrap()).unwrap();
    let prepared = Arc::new(backend.prepare(set).unwrap());
    let calls = [Call::from(Key::from("key"))];
    *clock.0.lock().unwrap() = true;
    let (failing, set, asked) = (backend.clone(), Arc::clone(&prepared), calls.clone());
    assert!(
        thread::spawn(move || failing.decide_now(&set, &asked))
            .join()
            .is_err()
    );
    assert_eq!(backend.decide_now(&prepared, &calls).remaining(), 59);
}
