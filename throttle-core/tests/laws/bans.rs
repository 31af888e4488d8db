//! Keys that do not stop: strikes, and bans that grow. Random ones are among the exceptions.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use throttle_core::backend::{Ban, Call, Exception, KeyStep, Strikes, Treatment, drain};
use throttle_core::{
    Backend, Gcra, IntoAlgorithm, Key, ManualClock, MemoryBackend, MemorySet, Policy, PolicySet,
    Rate, Timestamp,
};

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Nine a day for each key, in a store of so many keys.
struct Store {
    clock: ManualClock,
    memory: MemoryBackend<ManualClock>,
    set: Arc<MemorySet>,
}

impl Store {
    fn new(max_keys: usize) -> Self {
        let clock = ManualClock::new(T0);
        let memory = MemoryBackend::builder()
            .max_keys(max_keys)
            .clock(clock.clone())
            .build();
        let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_day(9))).unwrap()).unwrap();
        let set = Arc::new(memory.prepare(set).unwrap());
        Self { clock, memory, set }
    }

    /// The ban that a strike has begun.
    fn strike(&self, key: &Key, ban: &Ban) -> Result<Option<Strikes>, String> {
        let mut answer = self
            .memory
            .run(&self.set, 0, KeyStep::Strike(key.clone(), *ban));
        let Poll::Ready(answer) = answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("memory does not wait")
        };
        let begun = answer.map_err(|error| {
            std::error::Error::source(&error)
                .expect("a reason")
                .to_string()
        })?;
        Ok(begun.first().map(|begun| strikes(&begun.exception)))
    }

    /// How long the key is refused; zero if it is admitted.
    fn wait(&self, key: &Key) -> Duration {
        let decision = self
            .memory
            .decide_now(&self.set, &[Call::from(key.clone())]);
        assert_eq!(decision.statuses()[0].is_banned(), !decision.is_admitted());
        decision.retry_after().expect("a wait helps")
    }

    fn pass(&self, time: Duration) {
        self.clock
            .set(throttle_core::Clock::now(&self.clock) + time);
    }
}

fn strikes(of: &Exception) -> Strikes {
    match of.treatment {
        Treatment::Struck(strikes) => strikes,
        _ => panic!("{of:?}"),
    }
}

/// `fail2ban/tests/observertestcase.py`: base 10 minutes, at most a day.
#[test]
fn bans_of_a_client_that_comes_back_grow_as_those_of_fail2ban() {
    let (store, key) = (Store::new(9), Key::from("eve"));
    let ban = Ban::after(1).lasting(secs(600)).up_to(secs(86_400));
    for length in [
        600, 1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 76_800, 86_400, 86_400,
    ] {
        let begun = store.strike(&key, &ban).unwrap().expect("a ban");
        assert_eq!(
            (begun.banned_until, store.wait(&key)),
            (
                throttle_core::Clock::now(&store.clock) + secs(length),
                secs(length)
            )
        );
        assert_eq!(store.strike(&key, &ban), Ok(None), "it is banned");
        store.pass(secs(length));
        assert_eq!(store.wait(&key), secs(0));
    }
    let longest = Ban::after(1)
        .lasting(Duration::from_micros(1))
        .up_to(secs(86_400 * 3_650));
    assert_eq!(
        [19, 20, 21, 255].map(|bans| longest.length(bans).as_micros()),
        [1 << 19, 1 << 20, 1 << 20, 1 << 20]
    );
    let parts = Ban::after(1).lasting(Duration::from_nanos(1_500));
    assert_eq!(
        parts.length(1),
        Duration::from_micros(4),
        "as a store counts that knows µs only"
    );
    store.pass(secs(7 * 86_400));
    assert_eq!(
        store.strike(&key, &ban).unwrap().expect("a ban").level,
        1,
        "the bans before are forgotten"
    );
}

/// Three strikes within a minute.
#[test]
fn strike_counts_for_as_long_as_it_is_within_the_time_of_the_first() {
    let ban = Ban::after(3).within(secs(60));
    for (times, is_banned) in [
        (&[0, 30, 60][..], true),
        (&[0, 30, 61], false),
        (&[0, 30, 61, 100, 121], true),
        (&[0, 61, 122, 183], false),
        // The clock was set back: what was counted still counts.
        (&[100, 0, 50], true),
    ] {
        let mut over = None;
        let mut begun = Vec::new();
        for time in times {
            let struck = ban
                .strike(over.as_ref(), T0 + secs(*time))
                .expect("it counts");
            begun.push(struck.is_ban);
            over = Some(struck.exception);
        }
        let (last, before) = begun.split_last().unwrap();
        assert_eq!(
            (*last, before.contains(&true)),
            (is_banned, false),
            "{times:?}"
        );
    }
}

/// Two strikes within a minute; bans of a second, forgotten after two minutes.
#[test]
fn strikes_behind_a_ban_begin_anew_and_are_forgotten_with_it() {
    let ban = Ban::after(2)
        .within(secs(60))
        .lasting(secs(1))
        .forgotten_after(secs(120));
    for (times, bans) in [
        (&[0, 0, 50, 110][..], 2),
        (&[0, 0, 50, 111], 1),
        (&[0, 0, 50, 111, 111], 2),
    ] {
        let (mut over, mut begun) = (None, 0);
        for time in times {
            let struck = ban
                .strike(over.as_ref(), T0 + secs(*time))
                .expect("it counts");
            begun += i32::from(struck.is_ban);
            over = Some(struck.exception);
        }
        assert_eq!(begun, bans, "{times:?}");
    }
    let soon = Ban::after(1)
        .within(secs(60))
        .lasting(secs(1))
        .forgotten_after(secs(2));
    assert_eq!(
        soon.strike(None, T0).expect("it counts").exception.until,
        T0 + secs(3)
    );
}

#[test]
fn law_07_a_step_of_the_clock_ends_no_ban_and_a_strike_bounds_it() {
    let (store, key, ban) = (
        Store::new(9),
        Key::from("eve"),
        Ban::after(1).lasting(secs(600)).up_to(secs(600)),
    );
    let until = store
        .strike(&key, &ban)
        .unwrap()
        .expect("a ban")
        .banned_until;
    store.clock.set(Timestamp::EPOCH);
    assert!(
        store.wait(&key) > secs(86_400),
        "as other waits, until the clock is there again"
    );
    assert_eq!(store.strike(&key, &ban), Ok(None), "no ban more");
    assert_eq!(store.wait(&key), secs(600));
    store.clock.set(until);
    assert_eq!(store.wait(&key), secs(0), "a step forward ends it");
}

/// An operator's exception goes before, and what it replaces is forgotten.
#[test]
fn lifting_and_resetting_pardon_and_an_exception_counts_no_strikes() {
    let (store, key, ban) = (Store::new(9), Key::from("eve"), Ban::after(2));
    let except = |exception| {
        let step = KeyStep::Except(key.clone(), exception);
        drop(store.memory.run(&store.set, 0, step));
    };
    let struck = || store.strike(&key, &ban).unwrap().map(|begun| begun.level);
    assert_eq!([struck(), struck()], [None, Some(1)]);
    except(None);
    assert_eq!(
        (store.wait(&key), struck(), struck()),
        (secs(0), None, Some(1))
    );
    drop(store.memory.run(&store.set, 0, KeyStep::Reset(key.clone())));
    assert_eq!((store.wait(&key), struck()), (secs(0), None));
    except(Some(Exception {
        treatment: Treatment::Exempt,
        until: T0 + secs(60),
    }));
    assert_eq!([struck(), struck(), struck()], [None; 3]);
    assert_eq!(store.wait(&key), secs(0));
    store.pass(secs(60));
    assert_eq!([struck(), struck()], [None, Some(1)]);
}

#[test]
fn law_09_a_flood_of_keys_pardons_no_banned_one() {
    let (store, ban) = (Store::new(1_000), Ban::after(1));
    for banned in 0..500_u64 {
        assert!(store.strike(&Key::from(banned), &ban).unwrap().is_some());
    }
    for other in 1_000..21_000_u64 {
        let _ = store
            .memory
            .decide_now(&store.set, &[Call::from(Key::from(other))]);
    }
    assert!((0..500_u64).all(|banned| store.wait(&Key::from(banned)) == secs(600)));
    let full = store.strike(&Key::from(30_000), &ban).unwrap_err();
    assert!(full.starts_with("the store is full"), "{full}");
    store.pass(secs(600));
    assert_eq!(
        store
            .strike(&Key::from(0), &ban)
            .unwrap()
            .expect("a ban")
            .level,
        2,
        "nor forgets its level"
    );
}

#[test]
fn ban_that_cannot_be_is_refused_with_its_field_and_bound() {
    let ban = Ban::after(5);
    for (wrong, message) in [
        (
            Ban::after(0),
            "after is 0: it must be between 1 and 1000000",
        ),
        (
            Ban::after(1_000_001),
            "after is 1000001: it must be between 1 and 1000000",
        ),
        (ban.growing(0), "growing is 0: it must be between 1 and 100"),
        (
            ban.growing(101),
            "growing is 101: it must be between 1 and 100",
        ),
        (
            ban.within(secs(0)),
            "within is 0ns: it must be between 1 µs and 3650 days",
        ),
        (
            ban.lasting(secs(0)),
            "lasting is 0ns: it must be between 1 µs and 3650 days",
        ),
        (
            ban.up_to(secs(4_000 * 86_400)),
            "up_to is 345600000s: it must be between 1 µs and 3650 days",
        ),
        (
            ban.forgotten_after(secs(0)),
            "forgotten_after is 0ns: it must be between 1 µs and 3650 days",
        ),
        (
            ban.up_to(secs(599)),
            "up_to is 599s: it must be at least the length of the first ban, 600s; raise it",
        ),
    ] {
        assert_eq!(wrong.check().unwrap_err().to_string(), message);
    }
    let longest = secs(3_650 * 86_400);
    for right in [
        ban,
        Ban::after(1),
        ban.growing(1),
        ban.up_to(secs(600)),
        ban.growing(100).within(Duration::from_micros(1)),
        ban.forgotten_after(longest),
    ] {
        assert!(right.check().is_ok(), "{right:?}");
    }
    assert!(
        ban.forgotten_after(longest + Duration::from_nanos(1))
            .check()
            .is_err()
    );
    let day = 86_400_000_000;
    assert_eq!(
        ban.numbers(),
        [5, 2, 600_000_000, 600_000_000, day, 7 * day],
        "the defaults"
    );
}

/// Any bytes may stand in a store.
#[test]
fn strikes_are_read_from_their_own_bytes_only() {
    let struck = Ban::after(2).strike(None, T0).expect("it counts").exception;
    let bytes = struck.to_wire();
    assert_eq!(
        (bytes.len(), Exception::from_wire(&bytes)),
        (42, Some((struck, &b""[..])))
    );
    assert!((0..42).all(|cut| Exception::from_wire(&bytes[..cut]).is_none()));
    for (place, number) in [
        (26, -1.0),
        (26, 4_294_967_296.0),
        (34, 21.0),
        (34, 0.5),
        (10, 1e18),
        (18, f64::NAN),
    ] {
        let mut wrong = bytes.clone();
        wrong[place..place + 8].copy_from_slice(&f64::to_le_bytes(number));
        assert_eq!(Exception::from_wire(&wrong), None, "{number} at {place}");
    }
    let gcra = Gcra::new(Rate::per_day(9)).into_algorithm().unwrap();
    let state = gcra
        .decide(
            gcra.fresh()
                .excepted(Exception::from_wire(&bytes).map(|(over, _)| over)),
            T0,
            1,
        )
        .0;
    assert!(
        state.to_wire(&gcra).unwrap().starts_with(&bytes),
        "a charge keeps what is not forgotten"
    );
    let until = Exception::from_wire(&bytes).unwrap().0.until;
    let state = gcra.decide(state, until, 1).0;
    assert!(
        state.to_wire(&gcra).unwrap().starts_with(b"g0"),
        "and nothing else"
    );
}

#[test]
fn banned_key_is_not_drained_and_stays_banned() {
    let (store, key) = (Store::new(9), Key::from("k"));
    store.strike(&key, &Ban::after(1)).unwrap();
    let call = Call::from(key.clone());
    let drained = std::pin::pin!(drain(&store.memory, &store.set, 0, &call));
    let Poll::Ready(drained) = drained.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("memory does not wait")
    };
    let why = drained.map_err(|error| {
        std::error::Error::source(&error)
            .expect("a reason")
            .to_string()
    });
    assert_eq!(
        why.unwrap_err(),
        "the key is banned: lift the ban first, which pardons it"
    );
    assert_eq!(store.wait(&key), secs(600));
}
