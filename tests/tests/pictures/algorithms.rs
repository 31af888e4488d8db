//! The same requests, decided by every algorithm.

use std::time::Duration;

use throttle_core::algorithm::{
    Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, LeakyBucket,
    LeakyMeter, SlidingLog, SlidingWindow, TokenBucket,
};
use throttle_core::{ConfigError, Rate};

use crate::run::{MINUTE, run, shown};
use crate::svg::Picture;

const LEFT: i64 = 262;
const TOP: i64 = 104;
const ROW: i64 = 46;
/// In pixels.
const SECOND: i64 = 3;
const END: i64 = 159;
const TALL: [i64; 2] = [3, 26];
const SHORT: [i64; 2] = [3, 7];

/// In seconds: a burst, a stream, and a burst around 2:00.
fn arrivals() -> Vec<i64> {
    (3..35)
        .step_by(2)
        .chain((43..94).step_by(5))
        .chain((106..138).step_by(2))
        .collect()
}

/// Algorithms that decide alike: their names, and what is said of them.
type Row = (&'static str, &'static str, Vec<Algorithm>);

fn rows() -> Result<[Row; 6], ConfigError> {
    let rate = Rate::per_minute(10);
    let drains = vec![
        Gcra::new(rate).burst(5).into_algorithm()?,
        TokenBucket::new(rate).burst(5).into_algorithm()?,
        LeakyMeter::new(rate).capacity(5).into_algorithm()?,
    ];
    let portions = IntervalBucket::new(5)
        .refill(5, MINUTE / 2)
        .into_algorithm()?;
    let windows = vec![
        FixedWindow::new(rate).into_algorithm()?,
        CalendarQuota::fixed(10, MINUTE).into_algorithm()?,
    ];
    let queue = LeakyBucket::new(rate)
        .max_wait(Duration::from_secs(20))
        .into_algorithm()?;
    Ok([
        (
            "Gcra, TokenBucket, LeakyMeter",
            "5 at once, then one each 6 s",
            drains,
        ),
        (
            "IntervalBucket",
            "5 at once, then 5 more each 30 s",
            vec![portions],
        ),
        (
            "SlidingLog",
            "10 in any minute, exactly",
            vec![SlidingLog::new(rate).into_algorithm()?],
        ),
        (
            "SlidingWindow",
            "10 in any minute, about",
            vec![SlidingWindow::new(rate).into_algorithm()?],
        ),
        (
            "FixedWindow, CalendarQuota",
            "10 in each minute of the clock",
            windows,
        ),
        (
            "LeakyBucket",
            "one each 6 s; calls wait up to 20 s",
            vec![queue],
        ),
    ])
}

pub(crate) fn picture() -> String {
    let (rows, arrivals) = (rows().unwrap(), arrivals());
    let base = |row: usize| TOP + ROW * i64::try_from(row).unwrap();
    let (x, bottom) = (|second: i64| LEFT + SECOND * second, base(rows.len()) + 8);
    let mut picture = Picture::new(bottom + 34, "10 requests a minute, by each algorithm");
    picture.bars("good", TALL, [(27, 76)].into_iter());
    picture.text("soft small", 38, 68, "admitted");
    picture.bars("bad", SHORT, [(121, 76)].into_iter());
    picture.text("soft small", 132, 68, "refused");
    for (second, phase) in [(18, "burst"), (68, "stream"), (121, "burst")] {
        picture.text("soft small middle", x(second), 68, phase);
    }
    for minute in [0, 60, 120] {
        picture.line("edge-line thin", &[(x(minute), 76), (x(minute), bottom)]);
        picture.text("soft small middle", x(minute), bottom + 20, shown(minute));
    }
    picture.text("ink strong small", 24, TOP - 9, "Requests");
    picture.bars(
        "soft",
        TALL,
        arrivals.iter().map(|arrival| (x(*arrival) - 1, TOP)),
    );
    picture.text("ink end", 780, TOP - 8, arrivals.len());
    for (row, (names, note, algorithms)) in rows.iter().enumerate() {
        let (base, runs) = (
            base(row + 1),
            algorithms.iter().map(|algorithm| run(algorithm, &arrivals)),
        );
        let runs: Vec<_> = runs.collect();
        assert!(
            runs.iter().all(|run| *run == runs[0]),
            "{names} decide alike"
        );
        picture.text("ink strong small", 24, base - 18, names);
        picture.text("soft small", 24, base - 1, note);
        picture.line("edge-line thin", &[(LEFT, base), (x(END), base)]);
        let refused = arrivals
            .iter()
            .zip(&runs[0])
            .filter(|(_, leaves)| leaves.is_none());
        picture.bars(
            "good",
            TALL,
            runs[0]
                .iter()
                .flatten()
                .map(|leaves| (x(*leaves) - 1, base)),
        );
        picture.bars(
            "bad",
            SHORT,
            refused.map(|(arrival, _)| (x(*arrival) - 1, base)),
        );
        picture.text("ink end", 780, base - 8, runs[0].iter().flatten().count());
    }
    picture.finish()
}
