//! Row 1: arrivals that are as bad as they can be for a limiter.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::ideal::{self, Kind, Quota};
use super::libraries::{Admit, LIBRARIES, SetTime};
use super::page::{Row, Table};
use super::servers::{self, haproxy, nginx};

pub const ROW: Row = Row {
    word: "hostile",
    title: "Hostile arrivals: admitted, beside what an exact limiter admits",
    about: "One client sends more than its 10 requests a second. Each cell shows requests \
        admitted / what an exact
limiter of the kind admits of the same arrivals, and the most admitted within any one second. A \
*bucket* holds 10
and gains one each 100 ms, so up to 19 within a second are exact; a *window* promises 10 in any \
second, so exact
means the log. More than the exact number is a limit exceeded; less is a client refused that was \
within it.

*Boundary*: 20 requests 20 ms before each second second, 20 more 20 ms after it. *On-off*: 50 a \
second for a second,
a second of rest. *Early*: 10 at once, then one each 99 ms, 1 ms before the next one is due. \
*Simulated*: 60 s on a
clock that the limiter takes; *real*: 10 s of this machine's time, because the limiter takes no \
clock. nginx:
`limit_req_zone … rate=10r/s`, `limit_req burst=9 nodelay`; HAProxy: `store http_req_rate(1s)`, `deny if {
sc_http_req_rate(0) gt 10 }`; limitador: 10 in 1 s.",
    run,
};

const QUOTA: Quota = Quota {
    count: 10,
    period: Duration::from_secs(1),
};
const SIMULATED: Duration = Duration::from_secs(60);
const REAL: Duration = Duration::from_secs(10);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Arrivals = fn(Duration) -> Vec<Duration>;

fn boundary(length: Duration) -> Vec<Duration> {
    // The first request starts a fixed window that is not aligned.
    let bursts = (1..)
        .map(|n| Duration::from_secs(2 * n))
        .take_while(|at| *at < length);
    let bursts = bursts
        .flat_map(|at| [at - millis(20), at + millis(20)])
        .flat_map(|at| vec![at; 20]);
    [Duration::ZERO].into_iter().chain(bursts).collect()
}

fn on_off(length: Duration) -> Vec<Duration> {
    let every = (0..).map(|n| millis(20 * n)).take_while(|at| *at < length);
    every.filter(|at| at.as_secs() % 2 == 0).collect()
}

fn early(length: Duration) -> Vec<Duration> {
    let later = (1..).map(|n| millis(99 * n)).take_while(|at| *at < length);
    vec![Duration::ZERO; 10].into_iter().chain(later).collect()
}

const PATTERNS: [Arrivals; 3] = [boundary, on_off, early];

fn run() -> String {
    let simulated = LIBRARIES.iter().filter_map(|library| {
        let make = library.simulated?;
        Some(start(library.name, library.kind, move || {
            let (admit, set) = make(QUOTA);
            (admit, Some(set))
        }))
    });
    let mut running: Vec<Running> = simulated.collect();
    // One of throttle's, too, to compare the two kinds of time. All at once: they sleep nearly all
    // the time.
    for library in LIBRARIES
        .iter()
        .filter(|library| library.simulated.is_none() || library.name.contains("`Gcra`"))
    {
        running.push(start(library.name, library.kind, || {
            ((library.real)(QUOTA), None)
        }));
    }
    if servers::installed() {
        running.push(start("nginx", Kind::Bucket, || (nginx(QUOTA), None)));
        running.push(start("HAProxy", Kind::Window, || (haproxy(QUOTA), None)));
    }
    let mut table = Table::new(&["limiter", "kind", "time", "boundary", "on-off", "early"]);
    for Running {
        name,
        kind,
        time,
        patterns,
    } in running
    {
        let kind = if kind == Kind::Bucket {
            "bucket"
        } else {
            "window"
        };
        let cells = patterns.map(|pattern| pattern.join().expect("no limiter panics"));
        table.row(&[&[name, kind, time].map(str::to_owned)[..], &cells].concat());
    }
    table.text()
}

/// A limiter that is asked by all patterns.
struct Running {
    name: &'static str,
    kind: Kind,
    time: &'static str,
    patterns: [JoinHandle<String>; 3],
}

fn start(name: &'static str, kind: Kind, make: impl Fn() -> (Admit, Option<SetTime>)) -> Running {
    let mut time = "real";
    let patterns = PATTERNS.map(|arrivals| {
        let (admit, set) = make();
        if set.is_some() {
            time = "simulated";
        }
        thread::spawn(move || cell(kind, &ask(admit, set, arrivals)))
    });
    Running {
        name,
        kind,
        time,
        patterns,
    }
}

/// The instants of the requests, and whether they were admitted.
fn ask(mut admit: Admit, mut set: Option<SetTime>, arrivals: Arrivals) -> Vec<(Duration, bool)> {
    let start = Instant::now();
    let length = if set.is_some() { SIMULATED } else { REAL };
    let mut reach = |at: Duration| match &mut set {
        Some(set) => {
            set(at);
            at
        }
        None => {
            thread::sleep(at.saturating_sub(start.elapsed()));
            start.elapsed()
        }
    };
    arrivals(length)
        .into_iter()
        .map(|at| (reach(at), admit()))
        .collect()
}

fn cell(kind: Kind, asked: &[(Duration, bool)]) -> String {
    let all: Vec<Duration> = asked.iter().map(|(at, _)| *at).collect();
    let admitted: Vec<Duration> = asked
        .iter()
        .filter(|(_, admitted)| *admitted)
        .map(|(at, _)| *at)
        .collect();
    let most = ideal::most_within(&admitted, QUOTA.period);
    format!(
        "**{}** / {}, at most {most}",
        admitted.len(),
        ideal::admitted(kind, QUOTA, &all)
    )
}
