//! What is admitted within a minute, around the boundary of a fixed window.

use throttle_core::algorithm::{Algorithm, FixedWindow, Gcra, IntoAlgorithm, SlidingWindow};
use throttle_core::{ConfigError, Rate};

use crate::run::{run, shown};
use crate::svg::Picture;

const LIMIT: u64 = 10;
const PANEL: i64 = 252;
const FLOOR: i64 = 300;
/// In pixels.
const UNIT: i64 = 7;
const SECOND: i64 = 2;
/// The seconds of a panel, and when the requests begin: one a second.
const SHOWN: std::ops::RangeInclusive<i64> = 36..=144;
const FIRST: i64 = 50;

fn panels() -> Result<[(&'static str, &'static str, Algorithm); 3], ConfigError> {
    let rate = Rate::per_minute(LIMIT);
    Ok([
        (
            "FixedWindow",
            "10 in each minute of the clock",
            FixedWindow::new(rate).into_algorithm()?,
        ),
        (
            "SlidingWindow",
            "10 in any minute, about",
            SlidingWindow::new(rate).into_algorithm()?,
        ),
        (
            "Gcra",
            "3 at once, then one each 6 s",
            Gcra::new(rate).burst(3).into_algorithm()?,
        ),
    ])
}

pub(crate) fn picture() -> String {
    let mut picture = Picture::new(
        FLOOR + 66,
        "A fixed window admits twice its limit around a boundary",
    );
    let note = "Admitted in the last 60 seconds, of a request each second from 0:50 on. The limit \
        is 10 a minute.";
    picture.text("soft", 24, 62, note);
    let y = |count: usize| FLOOR - UNIT * i64::try_from(count).unwrap();
    let limit = y(usize::try_from(LIMIT).unwrap());
    for (left, (name, note, algorithm)) in (24..)
        .step_by(usize::try_from(PANEL).unwrap())
        .zip(panels().unwrap())
    {
        let x = |second: i64| left + SECOND * (second - SHOWN.start());
        let arrivals: Vec<i64> = (FIRST..=*SHOWN.end()).collect();
        let admitted: Vec<i64> = run(&algorithm, &arrivals).into_iter().flatten().collect();
        let within = |second: i64| {
            admitted
                .iter()
                .filter(|at| (second - 60 + 1..=second).contains(at))
                .count()
        };
        let most = SHOWN.map(within).max().unwrap();
        let colour = if y(most) < limit - 5 * UNIT {
            "bad"
        } else {
            "good"
        };

        for minute in [60, 120] {
            picture.line(
                "edge-line thin",
                &[(x(minute), 128), (x(minute), FLOOR + 22)],
            );
            picture.text("soft small middle", x(minute), FLOOR + 40, shown(minute));
        }
        let right = x(SHOWN.end() + 1);
        let steps =
            SHOWN.flat_map(|second| [second, second + 1].map(|end| (x(end), y(within(second)))));
        let (steps, ends): (Vec<_>, _) = (steps.collect(), [(right, FLOOR), (left, FLOOR)]);
        picture.area(&format!("{colour} pale"), &[&steps[..], &ends].concat());
        picture.line(&format!("{colour}-line"), &steps);
        picture.line("ink-line thin dash", &[(left, limit), (right, limit)]);
        picture.line("edge-line thin", &[(left, FLOOR), (right, FLOOR)]);
        picture.text("soft small", left, limit - 6, "limit");
        picture.bars(
            colour,
            [2, 16],
            admitted.iter().map(|at| (x(*at), FLOOR + 22)),
        );
        picture.text("ink strong", left, 96, name);
        picture.text("soft small", left, 116, note);
        let peaks: Vec<i64> = SHOWN.filter(|second| within(*second) == most).collect();
        let peak = (x(peaks[0]) + x(peaks[peaks.len() - 1] + 1)) / 2;
        picture.text(
            &format!("{colour} big strong middle"),
            peak,
            y(most) - 8,
            most,
        );
    }
    picture.finish()
}
