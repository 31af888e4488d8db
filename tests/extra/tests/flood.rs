//! A memory store that is flooded with new keys: a key that was refused stays refused, and no
//! decision takes long.
//!
//! `THROTTLE_FLOOD` sets how many millions of keys come, 10 by default.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use throttle_tower::throttle_core::backend::Call;
use throttle_tower::throttle_core::{Backend, Key, MemoryBackend, MemorySet, Policy, PolicySet};
use throttle_tower::{Gcra, Rate};

const MAX_KEYS: usize = 100_000;
const DRAINED: u64 = 1_000;
const CAPACITY: u64 = 10;

/// On an idle machine no decision takes as long. On one that is shared, a thread is put aside in
/// the middle of a decision now and then, and the other may have to wait for it.
const LATE: Duration = Duration::from_millis(1);

/// How long decisions took.
#[derive(Default)]
struct Pauses {
    decisions: u64,
    late: u64,
    longest: Duration,
}

impl Pauses {
    fn ask(&mut self, store: &MemoryBackend, set: &MemorySet, key: u64, cost: u64) -> bool {
        let calls = [Call::from(Key::from(key)).costing(cost)];
        let start = Instant::now();
        let admitted = store.decide_now(set, &calls).is_admitted();
        let took = start.elapsed();
        self.decisions += 1;
        self.late += u64::from(took >= LATE);
        self.longest = self.longest.max(took);
        admitted
    }

    fn shown(&self, of: &str) -> String {
        let Self {
            decisions,
            late,
            longest,
        } = self;
        format!(
            "{decisions} decisions on {of} keys, the longest took {longest:?}, {late} took \
            {LATE:?} or more"
        )
    }
}

/// How often the system has put this thread aside.
fn times_put_aside() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").expect("a Linux system");
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))
        .expect("a count");
    count.trim().parse().expect("a number")
}

fn progress(line: &str) {
    // The test harness shows nothing of a test that passes.
    writeln!(stderr(), "flood: {line}").expect("a place to print to");
}

#[test]
fn law_09_drained_keys_stay_refused_while_millions_of_others_come() {
    let millions: u64 = env::var("THROTTLE_FLOOD")
        .map_or(10, |text| text.parse().expect("THROTTLE_FLOOD is a number"));
    let store = MemoryBackend::builder().max_keys(MAX_KEYS).build();
    // Nothing drains while this runs.
    let policy = Policy::new(
        "flooded",
        Gcra::new(Rate::per_day(CAPACITY)).burst(CAPACITY),
    )
    .expect("a policy");
    let set = store
        .prepare(PolicySet::new(policy).expect("a set"))
        .expect("room");
    let (mut own, mut others, mut aside) = (Pauses::default(), Pauses::default(), 0);
    assert!((0..DRAINED).all(|key| own.ask(&store, &set, key, CAPACITY)));
    let (ended, before) = (AtomicBool::new(false), times_put_aside());
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for key in 0..DRAINED {
                    assert!(!own.ask(&store, &set, key, 1), "{key} is admitted");
                }
                thread::sleep(Duration::from_millis(10));
            }
            times_put_aside()
        });
        let mut admitted = 0;
        for key in DRAINED..DRAINED + millions * 1_000_000 {
            admitted += u64::from(others.ask(&store, &set, key, 1));
            if key % 5_000_000 == 0 {
                progress(&format!("{key} keys, {} held", store.keys()));
            }
        }
        ended.store(true, Ordering::Relaxed);
        aside += asking.join().expect("no drained key was admitted") + times_put_aside() - before;
        assert!(
            admitted >= MAX_KEYS as u64 - DRAINED,
            "{admitted}: the store has room for these"
        );
    });
    assert!((0..DRAINED).all(|key| !own.ask(&store, &set, key, 1)));
    assert!(store.keys() <= MAX_KEYS);
    let line = [own.shown("drained"), others.shown("new")].join("; ")
        + &format!(
            "; put aside \
        {aside} times"
        );
    progress(&line);
    // A machine that is itself a guest is put aside without a count.
    let unseen = 5 + (own.decisions + others.decisions) / 100_000;
    assert!(own.late + others.late <= 2 * aside + unseen, "{line}");
}
