//! Row 5: a million clients that were never seen before.

use super::page::{Row, Table};
use crate::memory::measure;
use crate::report;

pub const ROW: Row = Row {
    word: "flood",
    title: "A million new keys: memory, and the longest decision",
    about: "Each limiter decides about 1,000,000 IPv4 addresses, once each, in a process of its \
        own; none of the
keys recovers meanwhile. *Held* is what a counting allocator says, *resident* what the kernel \
says. The longest of
the million decisions is the least of three rounds (then the median), because it includes \
whatever else the machine
did. *Bounded* says what happens to the next million keys. tower_governor keeps governor's store; \
axum-governor is
called through its layer, the others directly; limitador with room for 1,000,000.

Not comparable: nginx and HAProxy, whose tables are shared memory of a size that is configured.",
    run,
};

const CONTENDERS: [(&str, &str, &str); 6] = [
    (
        "throttle",
        "throttle",
        "yes, 1,000,000 by default; further keys share a counter",
    ),
    (
        "governor (tower_governor)",
        "informed",
        "no; `retain_recent` is called by the user",
    ),
    (
        "axum-governor",
        "axum-governor",
        "no; a task sweeps each 60 s, `max_keys` is best effort",
    ),
    (
        "rate-net",
        "rate-net",
        "yes, 1,048,576 by default; what evicted keys owe is kept apart",
    ),
    ("quota", "quota", "no"),
    (
        "limitador",
        "limitador",
        "yes, as configured; an evicted key starts anew",
    ),
];

fn run() -> String {
    let mut table = Table::new(&[
        "limiter",
        "bytes a key, held",
        "resident",
        "longest, µs: least (median)",
        "median, µs",
        "bounded",
    ]);
    for (title, name, bounded) in CONTENDERS {
        let bytes: Vec<String> = measure("v4", name, 1)
            .iter()
            .map(|rounds| format!("{:.0}", rounds[0]))
            .collect();
        let micros = measure("inserts", name, 3);
        let least = micros[0].iter().copied().fold(f64::INFINITY, f64::min);
        let longest = format!("{least:.0} ({:.0})", report::median(&micros[0]));
        let median = format!("{:.2}", report::median(&micros[2]));
        let cells = [
            &[title.to_owned()][..],
            &bytes,
            &[longest, median, bounded.to_owned()],
        ]
        .concat();
        table.row(&cells);
    }
    table.text()
}
