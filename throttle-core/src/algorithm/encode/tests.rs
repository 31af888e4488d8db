use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;

use crate::algorithm::{
    Algorithm, CalendarQuota, Cell, Exception, FixedWindow, Gcra, IntervalBucket, LeakyBucket,
    LeakyMeter, Mark, SlidingLog, SlidingWindow, State, StateCharge, TokenBucket, Treatment,
};
use crate::error::ConfigError;
use crate::rate::Rate;
use crate::time::{EXACT_MAX, Timestamp};

const MOST: i64 = EXACT_MAX as i64;

/// Every algorithm, with numbers from the smallest to those at the edge of what can be counted.
fn algorithms() -> impl Strategy<Value = Algorithm> {
    let number = || {
        select(vec![
            1,
            2,
            3,
            7,
            60,
            333,
            1_000_000,
            86_400_000_000,
            1 << 40,
            1 << 52,
            EXACT_MAX,
        ])
    };
    (
        0..10_u8,
        number(),
        number(),
        number(),
        1..12_u64,
        -840..=840,
    )
        .prop_filter_map(
            "cannot be counted exactly",
            |(kind, count, period, other, few, minutes)| {
                let rate = Rate::new(count, Duration::from_micros(period));
                let interval = Duration::from_micros(period);
                let built = match kind {
                    0 => Gcra::new(rate).burst(other).build(),
                    1 => TokenBucket::new(rate).burst(other).build(),
                    2 => LeakyMeter::new(rate).capacity(other).build(),
                    3 if few % 2 == 0 => IntervalBucket::new(other).refill(count, interval).build(),
                    3 => IntervalBucket::new(other)
                        .refill(count, interval)
                        .aligned()
                        .build(),
                    4 => CalendarQuota::rolling(count, interval).build(),
                    5 => FixedWindow::new(rate).offset_micros(other as i64).build(),
                    6 => SlidingWindow::new(Rate::new(count, interval * few as u32))
                        .buckets(few)
                        .build(),
                    7 => SlidingLog::new(rate).build(),
                    8 => {
                        let make = [
                            CalendarQuota::daily,
                            CalendarQuota::weekly,
                            CalendarQuota::monthly,
                        ][few as usize % 3];
                        let quota = make(count)
                            .utc_offset_minutes(minutes)
                            .anchor_hour(few as u8 * 2);
                        if few % 3 == 0 {
                            quota.build()
                        } else {
                            quota.anchor_day(few as u8 % 7 + 1).build()
                        }
                    }
                    _ => LeakyBucket::new(rate)
                        .max_wait(Duration::from_micros(other))
                        .build(),
                };
                built.ok()
            },
        )
}

fn instants() -> impl Strategy<Value = i64> {
    prop_oneof![
        -MOST..=MOST,
        -1_000_i64..1_000,
        1_790_000_000_000_000_i64..1_790_000_000_001_000,
        select(vec![-MOST, -MOST + 1, 0, MOST - 1, MOST]),
    ]
}

/// Numbers that a payload might hold.
fn payloads() -> impl Strategy<Value = Vec<f64>> {
    let number = prop_oneof![
        3 => (0..4_u64).prop_map(|number| number as f64),
        3 => instants().prop_map(|number| number as f64),
        1 => any::<f64>(),
        1 => select(vec![f64::NAN, f64::INFINITY, -0.0, 0.5, 9_007_199_254_740_992.0, 1e300]),
    ];
    prop_oneof![
        prop::collection::vec(number, 0..14),
        // What a log holds: a sum, and instants that rise.
        (
            prop::collection::btree_map(instants(), 1..5_u64, 0..6),
            -1..2_i64
        )
            .prop_map(|(runs, wrong)| {
                let sum = runs.values().sum::<u64>() as i64 + wrong / 2;
                let pairs = runs
                    .iter()
                    .flat_map(|(at, units)| [*at as f64, *units as f64]);
                std::iter::once(sum as f64).chain(pairs).collect()
            }),
    ]
}

fn value(algorithm: &Algorithm, payload: &[f64]) -> Vec<u8> {
    let numbers: Vec<u8> = payload
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    [algorithm.tag().as_slice(), &numbers].concat()
}

/// Everything that can be done with a state, at an instant, also under other parameters.
fn exercise(algorithm: &Algorithm, other: &Algorithm, state: &State, now: i64, cost: u64) {
    let now = Timestamp::from_micros(now);
    let _ = (algorithm.peek(state, now), algorithm.fresh_at(state));
    let (after, _) = algorithm.decide(state.clone(), now, cost);
    let _ = (
        algorithm.peek(&after, now),
        algorithm.fresh_at(&after),
        after.to_wire(algorithm),
    );
    for actual in [0, 1, cost.saturating_add(1), u64::MAX] {
        for mark in [(now.as_micros(), 0), (MOST, EXACT_MAX), (0, 1)] {
            let taken = StateCharge {
                cost,
                mark: Mark {
                    at: mark.0,
                    frac: mark.1,
                },
            };
            for by in [algorithm, other] {
                let writer = Some(Cow::Owned(Arc::new(*algorithm)));
                let mut cell = Cell::new(by, writer, after.repr.clone(), now);
                cell.settle(taken, actual);
                let _ = (cell.wait(1), cell.wait(cost), cell.standing());
                if cell.wait(1) == 0 {
                    cell.take(1);
                }
                let _ = (
                    cell.standing(),
                    if cell.is_own() { by } else { algorithm }.repr_fresh_at(&cell.into_repr()),
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4 * ProptestConfig::default().cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// On clocks that stand between 1827 and 2112.
    #[test]
    fn what_is_written_is_read(
        algorithm in algorithms(),
        steps in prop::collection::vec((-(1_i64 << 51)..1 << 51, 0..100_000_i64, any::<u64>()), 1..12),
        together in any::<bool>(),
    ) {
        let mut state = algorithm.fresh();
        let capacity = algorithm.capacity();
        for (at, little, cost) in &steps {
            let at = if together { steps[0].0 + little } else { *at };
            (state, _) = algorithm.decide(state, Timestamp::from_micros(at), 1 + cost % capacity);
            let bytes = state.to_wire(&algorithm).unwrap();
            prop_assert!(bytes.starts_with(algorithm.tag().as_slice()));
            let read = State::from_wire(&algorithm, &bytes);
            prop_assert_eq!(read.as_ref(), Some(&state), "{:?}", bytes);
            for shorter in 0..bytes.len() {
                // A log without its newest runs is another sum.
                prop_assert_eq!(State::from_wire(&algorithm, &bytes[..shorter]), None);
            }
            prop_assert_eq!(State::from_wire(&algorithm, &[&bytes[..], &[0; 8]].concat()), None);
        }
    }

    #[test]
    fn whatever_is_read_can_be_decided_on(
        algorithm in algorithms(),
        other in algorithms(),
        payload in payloads(),
        now in instants(),
        cost in prop_oneof![0..5_u64, any::<u64>(), Just(EXACT_MAX)],
    ) {
        if let Some(state) = State::from_wire(&algorithm, &value(&algorithm, &payload)) {
            exercise(&algorithm, &other, &state, now, cost);
            // Also what another algorithm took may be settled here.
            exercise(&algorithm, &other, &state, now, other.capacity());
            prop_assert_eq!(State::from_wire(&algorithm, &state.to_wire(&algorithm).unwrap()), Some(state));
        }
    }

    #[test]
    fn bytes_of_any_kind_are_no_reason_to_panic(
        algorithm in algorithms(),
        bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let _ = State::from_wire(&algorithm, &bytes);
        let _ = State::from_wire(&algorithm, &[algorithm.tag().as_slice(), &bytes].concat());
    }

    #[test]
    fn tags_tell_algorithms_apart(one in algorithms(), other in algorithms()) {
        // Rates that differ only in how they are told, such as 2/2s and 1/s, count the same.
        if one.tag() == other.tag() {
            let state = one.decide(one.fresh(), Timestamp::EPOCH, 1).0;
            prop_assert_eq!(other.peek(&state, Timestamp::EPOCH), one.peek(&state, Timestamp::EPOCH));
            prop_assert_eq!((one.name(), one.capacity()), (other.name(), other.capacity()));
        } else {
            let bytes = other.decide(other.fresh(), Timestamp::EPOCH, 1).0.to_wire(&other).unwrap();
            // Parameters that cannot be built again from their tag are not taken for similar ones.
            if let Some(read) = State::from_wire(&one, &bytes) {
                prop_assert_eq!(read.to_wire(&one), Some(bytes));
                prop_assert_eq!(read.writer().map_or(one.tag(), |writer| writer.tag()), other.tag());
            }
        }
    }
}

/// An algorithm, how its tag starts, its parameters, and the payload after the charge of the test
/// below.
type Row = (Algorithm, &'static [u8], &'static [f64], &'static [f64]);

/// Each kind's bytes by hand, as the table tells them.
#[test]
fn the_table_of_bytes() {
    let now = Timestamp::from_micros(86_400_000_250);
    let second = Rate::new(3, Duration::from_micros(700));
    let algorithms: [Row; 9] = [
        // 2 units are 1 400 grains, of which 3 drain each µs: 466 µs and two thirds of one.
        (
            Gcra::new(second).build().unwrap(),
            b"g0",
            &[3.0, 700.0, 2_100.0],
            &[86_400_000_716.0, 2.0],
        ),
        (
            TokenBucket::new(second).build().unwrap(),
            b"t0",
            &[3.0, 700.0, 2_100.0],
            &[86_400_000_250.0, 700.0],
        ),
        (
            LeakyMeter::new(second).build().unwrap(),
            b"m0",
            &[3.0, 700.0, 2_100.0],
            &[86_400_000_250.0, 1_400.0],
        ),
        (
            IntervalBucket::new(5)
                .refill(2, Duration::from_micros(400))
                .aligned()
                .build()
                .unwrap(),
            b"i1",
            &[5.0, 2.0, 400.0],
            &[86_400_000_000.0, 3.0],
        ),
        (
            FixedWindow::new(second)
                .offset_micros(-500)
                .build()
                .unwrap(),
            b"f0",
            &[3.0, 700.0, 200.0],
            &[86_399_999_900.0, 2.0],
        ),
        (
            SlidingWindow::new(second).buckets(2).build().unwrap(),
            b"s0",
            &[3.0, 350.0, 2.0],
            &[86_400_000_250.0, 0.0, 2.0, 0.0],
        ),
        (
            SlidingLog::new(second).build().unwrap(),
            b"l0",
            &[3.0, 700.0],
            &[2.0, 86_400_000_250.0, 2.0],
        ),
        (
            CalendarQuota::daily(4)
                .utc_offset_minutes(-60)
                .build()
                .unwrap(),
            b"cd",
            &[4.0, -3_600_000_000.0],
            &[3_600_000_000.0, 2.0],
        ),
        (
            LeakyBucket::new(second)
                .max_wait(Duration::from_micros(1_000))
                .build()
                .unwrap(),
            b"q0",
            &[3.0, 700.0, 3_700.0],
            &[86_400_000_250.0, 86_400_000_716.0, 2.0],
        ),
    ];
    for (algorithm, kind, parameters, payload) in algorithms {
        let mut expected = kind.to_vec();
        expected.extend(parameters.iter().flat_map(|number| number.to_le_bytes()));
        assert_eq!(algorithm.tag().as_slice(), expected);
        let (state, verdict) = algorithm.decide(algorithm.fresh(), now, 2);
        assert!(verdict.is_admitted());
        assert_eq!(
            state.to_wire(&algorithm).unwrap(),
            value(&algorithm, payload),
            "{kind:?}"
        );
    }
    let quota = CalendarQuota::rolling(4, Duration::from_secs(1))
        .build()
        .unwrap();
    assert_eq!(&quota.tag()[..2], b"i2");
    // How many hours the quota's clock is ahead of UTC.
    for (quota, kind, hours) in [
        (CalendarQuota::weekly(4).anchor_day(3), b"cw", -48),
        (
            CalendarQuota::monthly(4)
                .utc_offset_minutes(120)
                .anchor_hour(5),
            b"cm",
            -3,
        ),
        (CalendarQuota::monthly(4).anchor_last_day(), b"cm", 24),
    ] {
        let numbers = [4_i64, hours * 3_600_000_000].map(|number| (number as f64).to_le_bytes());
        assert_eq!(
            quota.build().unwrap().tag(),
            [&kind[..], &numbers.concat()].concat(),
            "{quota:?}"
        );
    }
}

/// The least and the most that each number of a state may be, and that nothing beyond is read.
#[test]
fn a_state_holds_nothing_that_no_charge_could_have_left() {
    let rate = Rate::new(3, Duration::from_micros(700));
    let (max, beyond) = (MOST as f64, 9_007_199_254_740_992.0);
    let window = || SlidingWindow::new(rate).buckets(2).build().unwrap();
    let log = || SlidingLog::new(rate).build().unwrap();
    let queue = || {
        LeakyBucket::new(rate)
            .max_wait(Duration::from_micros(1_000))
            .build()
            .unwrap()
    };
    let quota = || {
        CalendarQuota::rolling(4, Duration::from_secs(1))
            .build()
            .unwrap()
    };
    // An algorithm, states that are none, and states.
    type States = Vec<Vec<f64>>;
    let rows: Vec<(Algorithm, States, States)> = vec![
        (
            Gcra::new(rate).build().unwrap(),
            vec![vec![beyond, 2.0], vec![-beyond, 0.0]],
            vec![
                vec![0.0, 3.0],
                vec![0.0, -1.0],
                vec![0.5, 0.0],
                vec![beyond + 2.0, 0.0],
                vec![0.0],
                vec![0.0; 3],
            ],
        ),
        (
            TokenBucket::new(rate).build().unwrap(),
            vec![vec![max, 2_100.0], vec![-max, 0.0]],
            vec![
                vec![beyond, 0.0],
                vec![-beyond, 0.0],
                vec![0.0, 2_101.0],
                vec![0.0, -1.0],
                vec![0.0],
            ],
        ),
        (
            LeakyMeter::new(rate).build().unwrap(),
            vec![vec![max, 2_100.0], vec![-max, 0.0]],
            vec![
                vec![beyond, 0.0],
                vec![-beyond, 0.0],
                vec![0.0, 2_101.0],
                vec![0.0, -1.0],
            ],
        ),
        (
            queue(),
            vec![vec![max, max, 2.0], vec![-max, 0.0, 0.0]],
            vec![
                // A slot before the last charge.
                vec![max, max - 1.0, 2.0],
                vec![beyond, beyond, 0.0],
                vec![-beyond, 0.0, 0.0],
                vec![0.0, 0.0, 3.0],
                vec![0.0, 0.0],
                vec![],
            ],
        ),
        (
            quota(),
            vec![vec![0.0, 4.0], vec![0.0, 0.0]],
            vec![vec![0.0, 5.0], vec![0.0, -1.0], vec![0.0]],
        ),
        (
            FixedWindow::new(rate).build().unwrap(),
            vec![vec![0.0, 3.0], vec![-700.0, 1.0], vec![7.0, 0.0]],
            vec![
                vec![0.0, 4.0],
                vec![0.0, -1.0],
                vec![0.0],
                vec![7.0, 1.0],
                vec![699.0, 3.0],
            ],
        ),
        (
            CalendarQuota::daily(4).build().unwrap(),
            vec![vec![0.0, 4.0], vec![86_400_000_000.0, 1.0], vec![7.0, 0.0]],
            vec![vec![0.0, 5.0], vec![7.0, 1.0]],
        ),
        (
            window(),
            vec![vec![max, 3.0, 0.0, 3.0], vec![-max, 0.0, 0.0, 0.0]],
            vec![
                vec![beyond, 0.0, 0.0, 0.0],
                vec![0.0, 4.0, 0.0, 0.0],
                vec![0.0; 3],
                vec![0.0; 5],
                vec![],
            ],
        ),
        (
            log(),
            vec![vec![0.0], vec![3.0, -max, 1.0, max, 2.0]],
            vec![
                vec![1.0],
                vec![2.0, 5.0, 1.0],
                vec![1.0, 5.0, 2.0],
                vec![0.0, 5.0, 0.0],
                vec![2.0, 5.0, 1.0, 5.0, 1.0],
                vec![2.0, 6.0, 1.0, 5.0, 1.0],
                vec![1.0, 5.0, 1.0, 6.0],
                vec![1.0, beyond, 1.0],
                vec![],
            ],
        ),
    ];
    for (algorithm, states, others) in rows {
        for payload in &states {
            let whole = value(&algorithm, payload);
            let read = State::from_wire(&algorithm, &whole)
                .unwrap_or_else(|| panic!("{payload:?} of {algorithm:?}"));
            assert_eq!(read.writer, None);
            // What counts no more is charged as an unused state is, wherever it starts.
            let now = Timestamp::from_micros(8);
            if algorithm.fresh_at(&read) <= now {
                assert_eq!(
                    algorithm.decide(read, now, 1),
                    algorithm.decide(algorithm.fresh(), now, 1),
                    "{payload:?}"
                );
            }
            assert_eq!(
                State::from_wire(&algorithm, &[&whole[..], b"0"].concat()),
                None,
                "a byte too many"
            );
            assert_eq!(
                State::from_wire(&algorithm, &whole[..whole.len() - 1]),
                None,
                "a byte is missing"
            );
            for at in [0, 1] {
                let mut other = whole.clone();
                other[at] ^= 1;
                let read = State::from_wire(&algorithm, &other);
                assert!(
                    read.is_none_or(|state| state.writer.is_some()),
                    "another kind or variant"
                );
            }
        }
        for payload in &others {
            let bytes = value(&algorithm, payload);
            assert_eq!(
                State::from_wire(&algorithm, &bytes),
                None,
                "{payload:?} of {algorithm:?}"
            );
        }
    }
}

/// Five units of at most three: the first two leave nothing free.
#[test]
fn log_that_holds_more_than_its_limit_has_its_next_unit_when_fewer_count() {
    let log = SlidingLog::new(Rate::new(3, Duration::from_micros(100)))
        .build()
        .unwrap();
    let state = State::from_wire(&log, &value(&log, &[5.0, 0.0, 2.0, 5.0, 3.0])).unwrap();
    let now = Timestamp::from_micros(6);
    assert_eq!(log.standing(&state.repr, now).next, 99);
    assert_eq!(log.decide(state, now, 1).1.retry_after_micros(), Some(99));
}

#[test]
fn every_tag_names_the_algorithm_that_wrote_it() {
    let rate = Rate::new(7, Duration::from_micros(30));
    let all: [Result<Algorithm, ConfigError>; 19] = [
        Gcra::new(rate).burst(3).build(),
        TokenBucket::new(rate).burst(11).build(),
        LeakyMeter::new(Rate::per_day(86_400)).build(),
        LeakyBucket::new(rate)
            .max_wait(Duration::from_secs(3))
            .build(),
        LeakyBucket::new(rate)
            .max_wait(Duration::from_secs(3))
            .without_delay()
            .build(),
        IntervalBucket::new(10)
            .refill(3, Duration::from_secs(5))
            .build(),
        IntervalBucket::new(10)
            .refill(3, Duration::from_secs(5))
            .aligned()
            .build(),
        CalendarQuota::rolling(10, Duration::from_secs(5)).build(),
        CalendarQuota::fixed(10, Duration::from_secs(5)).build(),
        FixedWindow::new(rate)
            .offset(Duration::from_micros(12))
            .build(),
        CalendarQuota::daily(10).utc_offset_minutes(-345).build(),
        CalendarQuota::weekly(10).build(),
        CalendarQuota::monthly(10).utc_offset_minutes(60).build(),
        CalendarQuota::monthly(10)
            .anchor_day(28)
            .anchor_hour(23)
            .utc_offset_minutes(-840)
            .build(),
        CalendarQuota::monthly(10)
            .anchor_last_day()
            .utc_offset_minutes(840)
            .build(),
        CalendarQuota::weekly(10)
            .anchor_day(7)
            .anchor_hour(12)
            .build(),
        CalendarQuota::daily(10)
            .anchor_hour(23)
            .utc_offset_minutes(-840)
            .build(),
        SlidingWindow::new(Rate::per_minute(12)).buckets(4).build(),
        SlidingLog::new(Rate::per_minute(12)).build(),
    ];
    for algorithm in all {
        let algorithm = algorithm.unwrap();
        let (state, _) = algorithm.decide(algorithm.fresh(), Timestamp::from_micros(77), 2);
        let bytes = state.to_wire(&algorithm).unwrap();
        assert!(
            Algorithm::from_tag(&bytes).unwrap().is_alike(&algorithm),
            "{algorithm:?}"
        );
        assert_eq!(Algorithm::from_tag(&bytes[..9]), None, "cut short");
    }
    assert_eq!(Algorithm::from_tag(b"x0________________________"), None);
}

#[test]
fn exception_is_read_whole_and_over_one_state_or_not_at_all() {
    let gcra = Gcra::new(Rate::per_day(9)).build().unwrap();
    let limit = FixedWindow::new(Rate::per_day(90)).build().unwrap();
    for treatment in [
        Treatment::Exempt,
        Treatment::Blocked,
        Treatment::Limit(Arc::new(limit)),
    ] {
        let exception = Exception {
            treatment,
            until: Timestamp::from_micros(77),
        };
        let over = |state: State| state.excepted(Some(exception.clone()));
        let used = over(gcra.decide(gcra.fresh(), Timestamp::EPOCH, 1).0);
        let (head, bytes) = (exception.to_wire(), used.to_wire(&gcra).unwrap());
        assert_eq!(State::from_wire(&gcra, &bytes), Some(used));
        assert_eq!(
            State::from_wire(&gcra, &head),
            Some(over(gcra.fresh())),
            "the key was unused"
        );
        for shorter in (0..bytes.len()).filter(|length| *length != head.len()) {
            assert_eq!(
                State::from_wire(&gcra, &bytes[..shorter]),
                None,
                "{shorter} bytes"
            );
        }
        assert_eq!(
            State::from_wire(&gcra, &[head, bytes].concat()),
            None,
            "one over another"
        );
    }
}

/// Numbers that no builder takes, or that it would tell otherwise.
#[test]
fn a_tag_that_no_builder_writes_names_no_algorithm() {
    let read = |kind: &[u8; 2], numbers: &[f64]| {
        let numbers: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        Algorithm::from_tag(&[&kind[..], &numbers].concat())
    };
    assert!(read(b"g0", &[1.0, 2.0, 6.0]).is_some());
    for kind in [
        b"g0", b"t0", b"m0", b"q0", b"q1", b"i0", b"i1", b"i2", b"f0", b"s0",
    ] {
        // A rate that is not in lowest terms, or units that are no whole number of grains.
        let odd = [[2.0, 4.0, 12.0], [1.0, 2.0, 7.0], [0.5, 2.0, 6.0]];
        let zeros = [
            [0.0, 2.0, 6.0],
            [1.0, 0.0, 6.0],
            [1.0, 2.0, 0.0],
            [1.0, -2.0, 6.0],
            [1.0, 2.0, -6.0],
        ];
        let all = if b"gtm".contains(&kind[0]) {
            &odd[..]
        } else {
            &odd[2..]
        };
        for numbers in all.iter().chain(if b"gtms".contains(&kind[0]) {
            &zeros[..]
        } else {
            &zeros[..2]
        }) {
            assert_eq!(
                read(kind, numbers),
                None,
                "{numbers:?} of {}",
                kind.escape_ascii()
            );
        }
    }
    for kind in [b"cd", b"cw", b"cm"] {
        assert!(read(kind, &[5.0, 3_600_000_000.0]).is_some());
        for numbers in [
            [0.0, 0.0],
            [5.0, 1.0],
            [5.0, 259_200_000_000.0],
            [5.0, 257_698_037_760_000_000.0],
        ] {
            assert_eq!(read(kind, &numbers), None, "{numbers:?}");
        }
    }
    assert_eq!(
        read(
            b"s0",
            &[1.0, 4_503_599_627_370_496.0, 4_503_599_627_370_496.0]
        ),
        None
    );
    assert_eq!(
        (read(b"l0", &[0.0, 5.0]), read(b"l0", &[5.0, 0.0])),
        (None, None)
    );
}
