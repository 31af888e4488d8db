//! Snapshots: a store that was restored decides as the one that was saved, and bad bytes restore
//! nothing.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use throttle_core::backend::Call;
use throttle_core::snapshot::RestoreError;
use throttle_core::{
    Backend, CalendarQuota, Decision, FixedWindow, Gcra, IntoAlgorithm, Key, ManualClock,
    MemoryBackend, MemorySet, Policy, PolicySet, Rate, SlidingLog, Timestamp,
};

use crate::support::spec::TODAY;
use crate::support::strategies::for_every_kind;

const T0: Timestamp = Timestamp::from_micros(TODAY);

struct Store {
    clock: ManualClock,
    backend: MemoryBackend<ManualClock>,
    set: MemorySet,
}

impl Store {
    fn of(
        backend: MemoryBackend<ManualClock>,
        clock: ManualClock,
        algorithm: impl IntoAlgorithm,
    ) -> Self {
        let set = PolicySet::new(Policy::new("p", algorithm).unwrap()).unwrap();
        let set = backend.prepare(set).unwrap();
        Self {
            clock,
            backend,
            set,
        }
    }

    fn new(max_keys: usize, algorithm: impl IntoAlgorithm) -> Self {
        let clock = ManualClock::new(T0);
        Self::of(
            MemoryBackend::builder()
                .max_keys(max_keys)
                .clock(clock.clone())
                .build(),
            clock,
            algorithm,
        )
    }

    fn ask(&self, key: u64, cost: u64) -> Decision {
        self.backend
            .decide_now(&self.set, &[Call::from(Key::from(key)).costing(cost)])
    }

    fn saved(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.backend.snapshot(&mut bytes).unwrap();
        bytes
    }

    /// A store of this one's snapshot, at an instant.
    fn again(
        &self,
        at: Timestamp,
        max_keys: usize,
        algorithm: impl IntoAlgorithm,
    ) -> Result<Self, RestoreError> {
        let clock = ManualClock::new(at);
        let builder = MemoryBackend::builder()
            .max_keys(max_keys)
            .clock(clock.clone());
        Ok(Self::of(
            builder.restore(&mut &*self.saved())?,
            clock,
            algorithm,
        ))
    }
}

/// The clock was stepped back since the snapshot was taken.
#[test]
fn law_07_a_snapshot_from_the_future_counts_as_taken_now() {
    for_every_kind(
        |specs| (specs, 1..20_u64, 1..1_000_000_000_000_i64),
        |(spec, cost, back)| {
            let algorithm = spec.build().unwrap();
            let store = Store::new(10, algorithm);
            let cost = algorithm.capacity().min(*cost);
            assert!(store.ask(1, cost).is_admitted());
            let left = store.ask(1, 0).remaining();
            let now = TODAY - back;
            let restored = store
                .again(Timestamp::from_micros(now), 10, algorithm)
                .unwrap();
            let after = restored.ask(1, 0);
            prop_assert_eq!(after.remaining(), left, "it buys nothing");
            prop_assert_eq!(after.reset_after(), {
                let fresh = Store::new(10, algorithm);
                fresh.clock.set(Timestamp::from_micros(now));
                // A shaper may owe a part of a unit more than it counts as used.
                let counted = if left == algorithm.capacity() {
                    1
                } else {
                    algorithm.capacity() - left
                };
                assert!(fresh.ask(1, counted).is_admitted());
                fresh.ask(1, 0).reset_after()
            });
            Ok(())
        },
    );
}

/// Read from bytes, parameters have their rate in lowest terms.
#[test]
fn law_09_overflow_buckets_of_any_rate_outlive_the_process() {
    let gcra = || Gcra::new(Rate::per_day(8)).burst(3);
    let saved = Store::new(4, gcra());
    (0..40).for_each(|key| _ = saved.ask(key, 3));
    let restored = saved.again(T0, 4, gcra()).unwrap();
    assert!((0..40).all(|key| !restored.ask(key, 1).is_admitted()));
}

/// Two former shards become one. Whichever bucket is read first, what its keys have used stays
/// used.
#[test]
fn law_09_of_overflow_buckets_that_meet_the_fuller_one_stays() {
    // Which key is in which shard is random.
    for _ in 0..16 {
        let saved = Store::new(256, FixedWindow::new(Rate::per_day(10)));
        let short = Policy::new("short", Gcra::new(Rate::per_second(1)).burst(1)).unwrap();
        let short = saved
            .backend
            .prepare(PolicySet::new(short).unwrap())
            .unwrap();
        let fill = |key: u64| {
            saved
                .backend
                .decide_now(&short, &[Call::from(Key::from(key))])
        };
        assert!((0..256).all(|key| fill(key).is_admitted()));
        assert!(saved.ask(0, 9).is_admitted());
        let elsewhere = (1..)
            .find(|key| saved.ask(*key, 0).remaining() == 10)
            .expect("there are two shards");
        assert!(saved.ask(elsewhere, 1).is_admitted());
        let later = T0.after_micros(3_000_000);
        let restored = saved
            .again(later, 128, FixedWindow::new(Rate::per_day(10)))
            .unwrap();
        assert_eq!(restored.ask(1_000, 0).remaining(), 1);
    }
}

/// A clock an hour ahead was set right after keys were forgotten: new keys must not wait for that
/// hour.
#[test]
fn law_07_keys_forgotten_in_the_future_lock_out_no_new_key() {
    let saved = Store::new(16, Gcra::new(Rate::per_second(1)).burst(1));
    (0..16).for_each(|key| assert!(saved.ask(key, 1).is_admitted()));
    saved.clock.advance(Duration::from_secs(3_600));
    (16..32).for_each(|key| assert!(saved.ask(key, 1).is_admitted()));
    let restored = saved
        .again(T0, 16, Gcra::new(Rate::per_second(1)).burst(1))
        .unwrap();
    assert!(restored.ask(99, 1).is_admitted());
    restored.clock.advance(Duration::from_secs(1));
    assert!(restored.ask(99, 1).is_admitted(), "a second later");
}

/// A stale state is not in the snapshot, but a clock that steps back before it was stale finds no
/// unused key.
#[test]
fn law_07_states_stale_at_the_save_buy_nothing_on_a_step_back() {
    let saved = Store::new(16, FixedWindow::new(Rate::per_minute(10)));
    let minute = TODAY - TODAY.rem_euclid(60_000_000);
    saved.clock.set(Timestamp::from_micros(minute));
    assert!(saved.ask(1, 10).is_admitted());
    saved.clock.set(Timestamp::from_micros(minute + 61_000_000));
    let restored = saved
        .again(saved_at(&saved), 16, FixedWindow::new(Rate::per_minute(10)))
        .unwrap();
    restored.clock.set(Timestamp::from_micros(minute + 1));
    let again = restored.ask(1, 10);
    // As of the minute in which the state was fresh: a later one's units, and none of this
    // minute's.
    assert!(
        !again.is_admitted() || again.reset_after() > Duration::from_secs(60),
        "{again:?}"
    );
}

fn saved_at(store: &Store) -> Timestamp {
    use throttle_core::Clock;
    store.clock.now()
}

#[test]
fn law_09_overflow_buckets_outlive_the_process() {
    let saved = Store::new(16, FixedWindow::new(Rate::per_day(3)));
    (0..16).for_each(|key| assert!(saved.ask(key, 3).is_admitted()));
    (16..2_000).for_each(|key| _ = saved.ask(key, 3));
    let is_refused = |store: &Store, key| !store.ask(key, 1).is_admitted();
    assert!((16..2_000).all(|key| is_refused(&saved, key)));
    for max_keys in [16, 17, 500, 5_000, 100_000] {
        let restored = saved
            .again(T0, max_keys, FixedWindow::new(Rate::per_day(3)))
            .unwrap();
        assert!(
            (0..2_000).all(|key| is_refused(&restored, key)),
            "at most {max_keys} keys"
        );
    }
    let wide = Store::new(100_000, FixedWindow::new(Rate::per_day(3)));
    (0..100_000).for_each(|key| _ = wide.ask(key, 3));
    assert!(
        (100_000..101_000)
            .all(|key| !wide.ask(key, 3).is_admitted() || !wide.ask(key, 1).is_admitted())
    );
    let error = wide
        .again(T0, 99_999, FixedWindow::new(Rate::per_day(3)))
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("more live keys than max_keys, which is 99999; raise it"),
        "{error}"
    );
    let fewer_shards = wide
        .again(T0, 100_000, FixedWindow::new(Rate::per_day(3)))
        .unwrap();
    assert!((100_000..101_000).all(|key| is_refused(&fewer_shards, key)));
}

#[test]
fn attack_39_bytes_that_are_no_snapshot_restore_nothing() {
    let saved = Store::new(10, SlidingLog::new(Rate::per_day(9)));
    (0..3).for_each(|key| assert!(saved.ask(key, 2).is_admitted()));
    let bytes = saved.saved();
    let restore = |bytes: &[u8]| MemoryBackend::builder().restore(&mut &*bytes).err();
    assert!(restore(&bytes).is_none());
    for end in 0..bytes.len() {
        assert!(restore(&bytes[..end]).is_some(), "cut after {end} bytes");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let error = restore(&changed).expect("a changed byte");
        assert_eq!(
            matches!(error, RestoreError::NotASnapshot),
            at < 20,
            "{error} at {at}"
        );
    }
    assert!(
        restore(&[bytes, vec![0]].concat()).is_some(),
        "bytes behind the end"
    );
}

/// Requests are decided by the very thread that writes, at each of its writes.
#[test]
fn law_12_no_shard_is_held_while_a_snapshot_is_written() {
    struct Asks<'a>(&'a Store, AtomicUsize);
    impl Write for Asks<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            (0..10).for_each(|key| _ = self.0.ask(key, 1));
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for algorithm in [
        Gcra::new(Rate::per_day(1_000)).build(),
        SlidingLog::new(Rate::per_day(1_000)).build(),
    ] {
        let store = Store::new(10, algorithm.unwrap());
        (0..10).for_each(|key| _ = store.ask(key, 1));
        let mut asks = Asks(&store, AtomicUsize::new(0));
        assert_eq!(store.backend.snapshot(&mut asks).unwrap(), 10);
        assert!(asks.1.into_inner() > 10);
    }
}

/// A folder that is removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("throttle-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn a_saver_saves_now_and_then_and_at_the_end() {
    let folder = Folder::new("saver");
    let path = folder.0.join("limits");
    let store = Store::new(10, FixedWindow::new(Rate::per_day(3)));
    let saves = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&saves);
    let saver = store
        .backend
        .save_every(&path, Duration::from_millis(5), move |saved| {
            report.lock().unwrap().push(saved.unwrap());
        });
    while saves.lock().unwrap().len() < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(store.ask(1, 3).is_admitted());
    drop(saver);
    assert_eq!(
        saves.lock().unwrap().last(),
        Some(&1),
        "the last save has what was admitted before it"
    );
    let clock = ManualClock::new(T0);
    let builder = MemoryBackend::builder().clock(clock.clone());
    let restored = Store::of(
        builder.restore_file(&path).unwrap(),
        clock,
        FixedWindow::new(Rate::per_day(3)),
    );
    assert!(!restored.ask(1, 1).is_admitted());
    assert_eq!(
        fs::read_dir(&folder.0).unwrap().count(),
        1,
        "nothing is left aside"
    );
}

#[test]
fn a_missing_file_is_a_store_without_keys_and_a_bad_one_is_an_error() {
    let folder = Folder::new("missing");
    assert_eq!(
        MemoryBackend::builder()
            .restore_file(folder.0.join("none"))
            .unwrap()
            .keys(),
        0
    );
    fs::write(folder.0.join("bad"), "hello").unwrap();
    let error = MemoryBackend::builder()
        .restore_file(folder.0.join("bad"))
        .unwrap_err();
    assert!(
        error.to_string().contains("no snapshot of version 1"),
        "{error}"
    );
    assert!(matches!(
        MemoryBackend::builder().restore_file(&folder.0),
        Err(RestoreError::Io(_))
    ));
    let below_a_file = MemoryBackend::builder().restore_file(folder.0.join("bad/limits"));
    assert!(matches!(below_a_file, Err(RestoreError::Io(_))));
    let saved = MemoryBackend::new().save(folder.0.join("no/such/folder"));
    assert_eq!(saved.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn why_a_snapshot_is_not_restored_is_the_source_of_the_error() {
    let too_many = CalendarQuota::monthly(0).build().unwrap_err();
    for (error, source) in [
        (
            RestoreError::from(io::Error::other("the disk")),
            Some("the disk".to_owned()),
        ),
        (
            RestoreError::TooManyPolicies(too_many.clone()),
            Some(too_many.to_string()),
        ),
        (RestoreError::Damaged, None),
    ] {
        assert_eq!(error.source().map(ToString::to_string), source);
    }
}

/// A key that was forgotten an hour ahead of the clock may come back as a new one.
#[test]
fn law_07_restored_store_knows_how_far_keys_were_forgotten() {
    let (gcra, hour) = (Gcra::new(Rate::per_hour(10)), Duration::from_secs(3_600));
    let store = Store::new(1, gcra);
    assert!(store.ask(1, 10).is_admitted());
    store.clock.set(T0 + 2 * hour);
    assert!(
        store.ask(2, 1).is_admitted(),
        "in the place of the first key"
    );
    store.clock.set(T0);
    let restored = store.again(T0, 9, gcra).unwrap();
    assert_eq!(restored.ask(3, 1).reset_after(), hour + hour / 10);
    let idle = T0 + 2 * hour + hour / 10;
    let keys = [idle, Timestamp::from_micros(idle.as_micros() - 1)]
        .map(|at| store.again(at, 9, gcra).unwrap().backend.keys());
    assert_eq!(keys, [0, 1], "a key counts as long as its state does");
}
