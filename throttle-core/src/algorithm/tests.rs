//! What every algorithm keeps to itself and the headers and backends rely on: when the next unit
//! comes, when the window of a charge is over, and states that are settled, foreign or written
//! under other parameters.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::cell::Writer;
use super::transition::take;
use super::{
    Algorithm, CalendarQuota, Cell, Exception, FixedWindow, Gcra, IntervalBucket, Kind,
    LeakyBucket, LeakyMeter, Outcome, Repr, SlidingLog, SlidingWindow, Standing, State,
    StateFormat, TokenBucket, Transition, Treatment, Visitor, ask,
};
use crate::rate::Rate;
use crate::time::Timestamp;

const DAY: u64 = 86_400_000_000;
const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Small limits of every kind, and how they count time.
fn algorithms() -> Vec<Algorithm> {
    let rate = Rate::new(3, micros(100));
    let all = [
        Gcra::new(rate).burst(4).build(),
        Gcra::new(Rate::new(7, micros(3))).burst(9).build(),
        TokenBucket::new(rate).burst(4).build(),
        LeakyMeter::new(rate).capacity(4).build(),
        LeakyBucket::new(rate).max_wait(micros(120)).build(),
        IntervalBucket::new(7).refill(2, micros(50)).build(),
        IntervalBucket::new(7)
            .refill(2, micros(50))
            .aligned()
            .build(),
        CalendarQuota::rolling(5, micros(90)).build(),
        FixedWindow::new(Rate::new(5, micros(90)))
            .offset_micros(7)
            .build(),
        CalendarQuota::fixed(5, micros(90)).build(),
        CalendarQuota::daily(5).utc_offset_minutes(60).build(),
        CalendarQuota::weekly(5).build(),
        CalendarQuota::monthly(5).utc_offset_minutes(-90).build(),
        SlidingWindow::new(Rate::new(5, micros(90)))
            .buckets(3)
            .build(),
        SlidingWindow::new(Rate::new(5, micros(90)))
            .buckets(1)
            .build(),
        SlidingLog::new(Rate::new(5, micros(90))).build(),
        LeakyBucket::new(rate)
            .max_wait(micros(120))
            .without_delay()
            .build(),
    ];
    all.map(Result::unwrap).to_vec()
}

/// Whether use is counted in windows that end.
fn has_windows(algorithm: &Algorithm) -> bool {
    let rolling = algorithm.tag().starts_with(b"i2");
    rolling
        || matches!(
            algorithm.name(),
            "fixed_window" | "calendar_quota" | "sliding_window" | "sliding_log"
        )
}

fn is_cut_by_the_clock(algorithm: &Algorithm) -> bool {
    matches!(algorithm.name(), "fixed_window" | "calendar_quota")
}

/// A clock that steps both ways by µs or by days, and costs; a cost of 9 settles the last charge
/// instead.
fn steps() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let by = prop_oneof![6 => -150_i64..200, 1 => -(DAY as i64)..2 * DAY as i64, 3 => Just(0)];
    prop::collection::vec((by, 0..10_u64), 1..40)
}

struct PassAndSteps<'a> {
    repr: &'a Repr,
    now: Timestamp,
    cost: u64,
}

impl Visitor for PassAndSteps<'_> {
    type Output = [(Repr, Outcome, Standing); 2];

    fn visit<A: Transition<State: StateFormat>>(self, algorithm: &A) -> Self::Output {
        let Self { repr, now, cost } = self;
        let in_steps = |state: &mut A::State| {
            let outcome = match ask(algorithm, state, now, cost) {
                0 if cost > 0 => take(algorithm, state, now, cost),
                wait => Outcome::uncharged(wait),
            };
            (outcome, algorithm.standing(state, now))
        };
        let after = |step: &dyn Fn(&mut A::State) -> (Outcome, Standing)| {
            let mut repr = repr.clone();
            let (outcome, standing) =
                A::State::change(&mut repr, step).expect("a state of this algorithm");
            (repr, outcome, standing)
        };
        [
            after(&|state| algorithm.decide(state, now, cost)),
            after(&in_steps),
        ]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// `next` is the first instant at which more remains than now; of windows, the instant at which
    /// the window ends. GCRA says so if nothing remains.
    #[test]
    fn the_next_unit_comes_when_it_is_told(which in 0..17_usize, steps in steps()) {
        let algorithm = algorithms()[which];
        let (mut repr, mut now, mut last) = (algorithm.fresh_repr(), T0, None);
        for (by, cost) in steps {
            now = Timestamp::from_micros(now.as_micros() + by);
            if cost == 9 {
                if let Some(taken) = last.take() {
                    algorithm.settle(&mut repr, now, taken, by.unsigned_abs() % 6);
                }
            } else if cost > 0 && cost <= algorithm.capacity() && algorithm.wait(&repr, now, cost) == 0 {
                last = Some(algorithm.take(&mut repr, now, cost).1);
            }
            let standing = algorithm.standing(&repr, now);
            let after = |micros: u64| algorithm.standing(&repr, now.after_micros(micros));
            if is_cut_by_the_clock(&algorithm) {
                prop_assert!(standing.next > 0 && after(standing.next).remaining == algorithm.capacity());
                let before = after(standing.next - 1);
                prop_assert_eq!((before.remaining, before.next), (standing.remaining, 1), "before \
                    the window ends");
            } else if standing.reset == 0 {
                prop_assert_eq!((standing.next, standing.remaining), (0, algorithm.capacity()), "{:?}", algorithm);
            } else if matches!(algorithm.kind, Kind::Gcra(_)) && standing.remaining > 0 {
                prop_assert_eq!(standing.next, 0);
                let paced = standing.remaining * algorithm.rate.period_micros();
                prop_assert!(after(paced.div_ceil(algorithm.rate.count())).remaining > standing.remaining.min(algorithm.capacity() - 1));
            } else if standing.remaining < algorithm.capacity() {
                prop_assert!(standing.next > 0 && standing.next <= standing.reset, "{:?} of {:?}", standing, algorithm);
                prop_assert!(after(standing.next).remaining > standing.remaining, "{:?} of {:?}", standing, algorithm);
                prop_assert_eq!(after(standing.next - 1).remaining, standing.remaining, "{:?}", algorithm);
            }
            // What was charged and settled can be written, and is read as it was.
            let state = State::of(repr.clone());
            let bytes = state.to_wire(&algorithm).unwrap();
            prop_assert_eq!(State::from_wire(&algorithm, &bytes), Some(state), "{:?}", algorithm);
        }
    }

    /// An algorithm may decide in one pass. Its steps give the same.
    #[test]
    fn law_08_one_pass_decides_as_its_steps_do(
        which in 0..21_usize,
        start in prop_oneof![3 => Just(T0), 1 => Just(Timestamp::MIN), 1 => Just(Timestamp::MAX)],
        steps in steps(),
    ) {
        // One grain a µs or a unit, and as many units as can be counted.
        let (slow, fast) = (Rate::new(1, micros(10)), Rate::new(5, micros(1)));
        let more = [
            Gcra::new(slow).burst(4).build(),
            TokenBucket::new(slow).burst(4).build(),
            Gcra::new(fast).burst(9).build(),
            Gcra::new(Rate::per_second(1)).burst(4_503_599_627).build(),
        ];
        let algorithm = algorithms().into_iter().chain(more.map(Result::unwrap)).nth(which).unwrap();
        let (mut repr, mut now) = (algorithm.fresh_repr(), start);
        for (by, cost) in steps {
            now = Timestamp::from_micros(now.as_micros() + by);
            let [pass, steps] = algorithm.accept(PassAndSteps { repr: &repr, now, cost });
            prop_assert_eq!(&pass, &steps, "{:?}", algorithm);
            repr = pass.0;
        }
    }

    /// A charge that is given back at once leaves nothing, even where the clock has stepped back
    /// behind earlier ones.
    #[test]
    fn law_10_a_charge_given_back_at_once_leaves_no_trace(which in 0..17_usize, steps in steps()) {
        let algorithm = algorithms()[which];
        let (mut repr, mut now) = (algorithm.fresh_repr(), T0);
        for (by, cost) in steps {
            now = Timestamp::from_micros(now.as_micros() + by);
            if cost == 0 || cost > algorithm.capacity() || algorithm.wait(&repr, now, cost) > 0 {
                continue;
            }
            let before = algorithm.standing(&repr, now);
            let mut returned = repr.clone();
            let taken = algorithm.take(&mut returned, now, cost).1;
            algorithm.settle(&mut returned, now, taken, 0);
            prop_assert_eq!(algorithm.standing(&returned, now), before, "{:?}", algorithm);
            algorithm.take(&mut repr, now, cost);
        }
    }

    /// A single charge counts until its window is over, which is when the state is that of an
    /// unused key.
    #[test]
    fn the_window_of_a_charge_is_over_when_nothing_of_it_counts(at in -200_i64..200, cost in 1..4_u64) {
        for algorithm in algorithms() {
            let now = Timestamp::from_micros(T0.as_micros() + at);
            let mut repr = algorithm.fresh_repr();
            let taken = algorithm.take(&mut repr, now, cost).1;
            let reset = algorithm.standing(&repr, now).reset;
            let is_over = |micros| algorithm.is_over(now.after_micros(micros), taken.mark);
            let expected = if has_windows(&algorithm) { [false, true, true] } else { [false; 3] };
            prop_assert_eq!([reset - 1, reset, reset + 40 * DAY].map(is_over), expected, "{:?}", algorithm);
        }
    }
}

/// A state that another algorithm wrote is that of an unused key, until it is charged.
#[test]
fn a_state_of_another_algorithm_is_a_fresh_one() {
    for algorithm in algorithms() {
        let foreign = if algorithm.name() == "sliding_log" {
            algorithms()[4]
        } else {
            algorithms()[15]
        };
        let (state, _) = foreign.decide(foreign.fresh(), T0, foreign.capacity());
        assert_eq!(algorithm.peek(&state, T0).remaining(), algorithm.capacity());
        assert_eq!(algorithm.fresh_at(&state), Timestamp::MIN);
        let (state, verdict) = algorithm.decide(state, T0, algorithm.capacity() + 1);
        assert_eq!(verdict.retry_after_micros(), None);
        let (state, verdict) = algorithm.decide(state, T0, 2);
        assert!(verdict.is_admitted());
        let left = if algorithm.admits_only_when_idle() {
            0
        } else {
            algorithm.capacity() - 2
        };
        assert_eq!(
            algorithm.peek(&state, T0).remaining(),
            left,
            "{algorithm:?}"
        );
    }
}

#[test]
fn only_the_three_drains_drain_and_only_the_queue_delays() {
    for algorithm in algorithms() {
        let name = algorithm.name();
        assert_eq!(
            algorithm.drains(),
            ["gcra", "token_bucket", "leaky_meter"].contains(&name),
            "{name}"
        );
        let expected = [
            algorithm.tag().starts_with(b"q0"),
            algorithm.tag().starts_with(b"q1"),
        ];
        assert_eq!(
            [algorithm.delays(), algorithm.admits_only_when_idle()],
            expected,
            "{name}"
        );
    }
    let days = |quota: CalendarQuota| quota.build().unwrap().rate().period().as_secs() / 86_400;
    assert_eq!(
        [
            CalendarQuota::daily(1),
            CalendarQuota::weekly(1),
            CalendarQuota::monthly(1)
        ]
        .map(days),
        [1, 7, 31]
    );
}

/// Parts of a microsecond in what a builder takes count as a whole one.
#[test]
fn durations_are_rounded_up_to_whole_microseconds() {
    let rate = Rate::per_minute(60);
    for (nanos, whole) in [(1, 1), (1_000, 1), (1_001, 2)] {
        let nanos = Duration::from_nanos(nanos);
        let queue = LeakyBucket::new(rate).max_wait(nanos);
        assert_eq!(queue.longest_wait(), micros(whole));
        assert_eq!(
            FixedWindow::new(rate).offset(nanos),
            FixedWindow::new(rate).offset_micros(whole as i64)
        );
        let bucket = |interval| IntervalBucket::new(9).refill(3, interval);
        assert_eq!(bucket(nanos), bucket(micros(whole)));
        assert_eq!(Rate::new(3, nanos), Rate::new(3, micros(whole)));
    }
    let most = FixedWindow::new(rate).offset(Duration::MAX);
    assert_eq!(most, FixedWindow::new(rate).offset_micros(i64::MAX));
}

#[test]
fn sub_windows_are_at_most_1024_and_divide_the_period() {
    let window = |period, buckets| {
        SlidingWindow::new(Rate::new(5, micros(period)))
            .buckets(buckets)
            .build()
    };
    for (period, buckets, fits) in [
        (1_024, 1_024, true),
        (1_025, 1_025, false),
        (1_024, 0, false),
        (100, 3, false),
        (99, 3, true),
        (1, 2, false),
    ] {
        assert_eq!(
            window(period, buckets).is_ok(),
            fits,
            "{buckets} in {period} µs"
        );
    }
}

/// Of a window of three sub-windows of 30 µs; the first one fades from 90 µs on.
#[test]
fn law_10_fading_charge_is_debited_no_more() {
    let window = SlidingWindow::new(Rate::new(5, micros(90)))
        .buckets(3)
        .build()
        .unwrap();
    for (later, left) in [(0, 2), (89, 2), (90, 4)] {
        let mut repr = window.fresh_repr();
        let taken = window.take(&mut repr, Timestamp::EPOCH, 1).1;
        let now = Timestamp::EPOCH.after_micros(later);
        window.settle(&mut repr, now, taken, 3);
        assert_eq!(
            window.standing(&repr, now).remaining,
            left,
            "after {later} µs"
        );
    }
}

/// A log forgets what has expired, so its state does not grow with time.
#[test]
fn a_log_keeps_no_more_runs_than_units() {
    let log = SlidingLog::new(Rate::new(3, micros(10))).build().unwrap();
    let mut state = log.fresh();
    for step in 0..200 {
        let now = T0.after_micros(step * 4);
        state = log.decide(state, now, 1).0;
        // A tag of two numbers, the sum, and a time and units for each run.
        assert!(state.to_wire(&log).unwrap().len() <= 2 + 16 + 8 + 3 * 16);
        state = log.decide(state, now, 1).0;
        assert!(
            state.to_wire(&log).unwrap().len() <= 2 + 16 + 8 + 3 * 16,
            "one instant, one run"
        );
    }
}

/// The parameters that wrote a state.
fn wrote<'a>(by: Algorithm) -> Option<Writer<'a>> {
    Some(Cow::Owned(Arc::new(by)))
}

/// A charge of an earlier period owes nothing in a later one.
#[test]
fn law_10_a_rolling_quota_is_debited_in_its_own_period_only() {
    let quota = CalendarQuota::rolling(9, micros(90)).build().unwrap();
    for (later, left) in [(0, 3), (89, 3), (90, 7)] {
        let mut repr = quota.fresh_repr();
        let early = quota.take(&mut repr, T0, 1).1;
        let now = T0.after_micros(later);
        quota.take(&mut repr, now, 2);
        quota.settle(&mut repr, now, early, 4);
        assert_eq!(
            quota.standing(&repr, now).remaining,
            left,
            "{later} µs later"
        );
    }
}

/// Of a queue nothing comes back behind which another departure is scheduled.
#[test]
fn law_10_a_settled_charge_returns_from_the_latest_one_of_others() {
    for (by, writer) in algorithms()
        .into_iter()
        .flat_map(|one| algorithms().into_iter().map(move |two| (one, two)))
    {
        let mut repr = by.fresh_repr();
        let taken = by.take(&mut repr, T0, 1).1;
        let now = T0.after_micros(1);
        let mut cell = Cell::new(&writer, wrote(by), repr, now);
        if cell.is_own() || writer.name() == "leaky_bucket" || cell.wait(1) > 0 {
            continue;
        }
        cell.take(1);
        let left = cell.standing().remaining;
        let mut cell = Cell::new(&by, wrote(writer), cell.into_repr(), now);
        cell.settle(taken, 0);
        assert_eq!(
            writer.standing(&cell.into_repr(), now).remaining,
            left + 1,
            "{writer:?} after {by:?}"
        );
    }
}

/// A store may have dropped such a state, so that the charge is settled over none.
#[test]
fn law_09_settling_over_what_counts_nothing_is_settling_over_none() {
    for (by, writer) in algorithms()
        .into_iter()
        .flat_map(|one| algorithms().into_iter().map(move |two| (one, two)))
    {
        let mut returned = writer.fresh_repr();
        let charge = writer.take(&mut returned, T0, 1).1;
        writer.settle(&mut returned, T0, charge, 0);
        let taken = by.take(&mut by.fresh_repr(), T0, 1).1;
        let [over_it, over_none] = [
            Cell::new(&by, wrote(writer), returned, T0),
            Cell::fresh(&by, T0),
        ]
        .map(|mut cell| {
            cell.settle(taken, 3);
            cell.standing()
        });
        assert_eq!(over_it, over_none, "{writer:?} before {by:?}");
    }
}

/// Until the store drops such a state, a clock that steps back finds it.
#[test]
fn law_07_settling_over_what_counts_no_more_leaves_it_as_it_is() {
    for (by, writer) in algorithms()
        .into_iter()
        .flat_map(|one| algorithms().into_iter().map(move |two| (one, two)))
    {
        let mut repr = writer.fresh_repr();
        writer.take(&mut repr, T0, 1);
        let later = T0.after_micros(writer.standing(&repr, T0).reset);
        let taken = by.take(&mut by.fresh_repr(), later, 1).1;
        let mut cell = Cell::new(&by, wrote(writer), repr.clone(), later);
        if !cell.is_own() {
            cell.settle(taken, 0);
            assert_eq!(cell.into_repr(), repr, "{writer:?} before {by:?}");
        }
    }
}

/// More remains of a state that others wrote when a request for one unit more is admitted.
#[test]
fn next_unit_under_other_parameters_comes_when_it_is_admitted() {
    for (former, later) in algorithms()
        .into_iter()
        .flat_map(|one| algorithms().into_iter().map(move |two| (one, two)))
    {
        for used in 1..=former.capacity() {
            let (state, _) = former.decide(former.fresh(), T0, used);
            let cell = |after: u64| {
                let writer = wrote(former);
                Cell::new(&later, writer, state.repr.clone(), T0.after_micros(after))
            };
            let standing = cell(0).standing();
            if cell(0).is_own() || standing.remaining == later.capacity() {
                continue;
            }
            assert_eq!(
                standing.next,
                cell(0).wait(standing.remaining + 1),
                "{later:?} after {former:?}"
            );
            assert_eq!(
                cell(standing.next - 1).standing().remaining,
                standing.remaining
            );
            assert!(
                cell(standing.next).standing().remaining > standing.remaining,
                "{later:?} after {former:?}"
            );
            assert_eq!(
                (
                    cell(standing.reset).standing().reset,
                    cell(standing.reset - 1).standing().reset
                ),
                (0, 1)
            );
        }
    }
}

#[test]
fn more_remains_of_a_blocked_key_when_its_exception_is_over() {
    let gcra = algorithms()[0];
    for (treatment, next) in [(Treatment::Blocked, 500), (Treatment::Exempt, 0)] {
        let state = gcra.fresh().excepted(Some(Exception {
            treatment,
            until: T0.after_micros(500),
        }));
        assert_eq!(Cell::new(&gcra, None, state.repr, T0).standing().next, next);
    }
}

/// The product of units and µs may exceed 64 bits where each limit alone is exact.
#[test]
fn what_remains_of_a_huge_limit_lasts_for_its_whole_period() {
    let period = 1 << 36;
    let rate = Rate::new(1 << 40, micros(period));
    for algorithm in [
        Gcra::new(rate).build().unwrap(),
        SlidingLog::new(rate).build().unwrap(),
    ] {
        let unused = algorithm.standing(&algorithm.fresh_repr(), T0);
        assert_eq!(algorithm.effective_window(unused), period, "{algorithm:?}");
    }
}
