//! Three processes with one limit, while their store is away: layers on a store that fails for ten
//! seconds.

use http::StatusCode;
use throttle_core::{BackendErrorKind, ManualClock, Timestamp};
use throttle_tower::{Constant, Gcra, MemoryBackend, OnError, Rate, ThrottleLayer, limit};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, get};
use crate::svg::Picture;

const LIMIT: u64 = 300;
/// Requests a second that each process receives.
const RECEIVED: [i64; 3] = [210, 120, 120];
const DOWN: std::ops::Range<i64> = 10..20;
const END: i64 = 30;
/// Before what is drawn, so that the first burst is over.
const START: i64 = -5;

/// What each process has admitted, for each second.
async fn admitted() -> Vec<[i64; 3]> {
    let clock = ManualClock::default();
    let mut store = Remote::faltering(true);
    store.memory = MemoryBackend::builder().clock(clock.clone()).build();
    let processes = RECEIVED.map(|_| {
        let shared = limit("api", Gcra::new(Rate::per_second(LIMIT)).burst(9))
            .by(Constant)
            .on_error(OnError::local(3));
        let share = MemoryBackend::builder().clock(clock.clone()).build();
        let layer = ThrottleLayer::builder(shared)
            .local_store(&share)
            .backend(store.clone())
            .build()
            .unwrap();
        layer.layer(Strict::default())
    });
    let sent = |process: usize| {
        let rate = RECEIVED[process];
        // One in each of so many parts of a second, somewhere in it.
        let part = 1_000_000 / rate;
        (START * rate..END * rate).map(move |n| {
            let random = ((n * 3 + i64::try_from(process).unwrap()) * 2_654_435_761) >> 8;
            (n * part + random.rem_euclid(part), process)
        })
    };
    let mut requests: Vec<_> = (0..3).flat_map(sent).collect();
    requests.sort_unstable();
    let mut seconds = vec![[0; 3]; usize::try_from(END).unwrap()];
    for (at, process) in requests {
        let second = at.div_euclid(1_000_000);
        clock.set(Timestamp::from_micros(at));
        store.trouble(
            DOWN.contains(&second)
                .then_some(BackendErrorKind::Unavailable),
        );
        let response = processes[process].clone().oneshot(get()).await.unwrap();
        if let (StatusCode::OK, Ok(second)) = (response.status(), usize::try_from(second)) {
            seconds[second][process] += 1;
        }
    }
    seconds
}

pub(crate) async fn picture() -> String {
    let seconds = admitted().await;
    let mut picture = Picture::new(408, "Redis dies, and the limit holds");
    let note = "Requests admitted per second by three processes. Without Redis, each admits a \
        third of the limit.";
    picture.text("soft", 24, 62, note);
    let (x, y) = (
        |second: i64| 64 + 19 * second,
        |count: i64| 366 - count * 3 / 5,
    );
    picture.rect(
        "edge pale",
        [x(DOWN.start), 78, x(DOWN.end) - x(DOWN.start), y(0) - 78],
        0,
    );
    let mut below = vec![0; seconds.len()];
    for (process, shade, ink) in [(0, "", "ground"), (1, "half", "ink"), (2, "pale", "ink")] {
        let above: Vec<i64> = below
            .iter()
            .zip(&seconds)
            .map(|(below, counts)| below + counts[process])
            .collect();
        let steps = |counts: &[i64]| -> Vec<_> {
            (0..)
                .zip(counts)
                .flat_map(|(second, count)| [(x(second), y(*count)), (x(second + 1), y(*count))])
                .collect()
        };
        let (top, mut floor) = (steps(&above), steps(&below));
        floor.reverse();
        picture.area(&format!("good {shade}"), &[&top[..], &floor].concat());
        picture.line("ground-line", &top);
        let middle = |second: usize| y((above[second] + below[second]) / 2) + 5;
        for (second, shown) in [(5, x(5)), (15, x(15)), (25, x(25))] {
            picture.text(
                &format!("{ink} middle"),
                shown,
                middle(second),
                seconds[second][process],
            );
        }
        picture.text(
            "soft small",
            x(END) + 10,
            middle(29),
            format!("process {}", process + 1),
        );
        below = above;
    }
    let (limit, received) = (LIMIT.cast_signed(), RECEIVED.iter().sum());
    picture.line("ink-line dash", &[(x(0), y(limit)), (x(END), y(limit))]);
    picture.text(
        "ink strong small",
        x(END) + 10,
        y(limit) + 5,
        format!("limit {limit}"),
    );
    picture.line(
        "soft-line thin",
        &[(x(0), y(received)), (x(END), y(received))],
    );
    picture.text(
        "soft small",
        x(END) + 10,
        y(received) + 5,
        format!("received {received}"),
    );
    picture.text(
        "ink strong middle",
        x((DOWN.start + DOWN.end) / 2),
        134,
        "Redis is down",
    );
    for second in (0..=END).step_by(10) {
        picture.text("soft small middle", x(second), 388, format!("{second} s"));
    }
    for count in [0, 100, 200, 300] {
        picture.text("soft small end", x(0) - 8, y(count) + 5, count);
    }
    picture.finish()
}
