//! Row 7: decisions a second.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use super::many_keys;
use super::page::{Row, Table};
use crate::peers::{GovernorInformed, Limit, Peer, Throttle};
use crate::report;
use crate::rivals::{Pool, RateNet};
use crate::stage::{Contender, compete};

pub const ROW: Row = Row {
    word: "speed",
    title: "Decisions a second, of one key",
    about: "Millions of decisions a second of all threads together (median of 11 rounds, in each \
        of which all take
turns; in parentheses the least and the most). *Admitted* never refuses, *refused* never admits. \
The key is built
from an `IpAddr` each time. throttle returns what remains, when to retry and when all is reset; \
governor with
`StateInformationMiddleware` what remains or when to retry; rate-net yes, or when to retry; quota \
what remains;
limitador yes or no. governor is the engine of tower_governor and axum-governor. More keys: \
section `decide` and
`rivals` of this program.",
    run,
};

/// Enough for some milliseconds, so that two threads overlap.
const PER_TURN: usize = 200_000;
/// The same for limitador, which takes microseconds.
const PER_SLOW_TURN: usize = 20_000;

fn run() -> String {
    let mut table = Table::new(&[
        "limiter",
        "admitted, 1 thread",
        "2 threads",
        "refused, 1 thread",
        "2 threads",
    ]);
    let names = ["throttle", "governor", "rate-net", "quota", "limitador"];
    let mut cells = names.map(|name| vec![name.to_owned()]);
    for limit in [Limit::NEVER_REFUSES, Limit::REFUSES] {
        let peers: [Box<dyn Peer>; 5] = [
            Box::new(Throttle::new(limit, 1_000_000)),
            Box::new(GovernorInformed::new(limit)),
            Box::new(RateNet::new(limit)),
            Box::new(Pool::new(limit)),
            many_keys::peer("limitador", in_seconds(limit)),
        ];
        for threads in [1, 2] {
            let steps = |name| {
                if name == "limitador" {
                    PER_SLOW_TURN
                } else {
                    PER_TURN
                }
            };
            let contenders: Vec<Contender<'_>> = peers
                .iter()
                .zip(names)
                .map(|(peer, name)| contender(peer.as_ref(), steps(name)))
                .collect();
            for (cells, nanos) in cells.iter_mut().zip(compete(&contenders, threads)) {
                let millions: Vec<f64> = nanos
                    .iter()
                    .map(|nanos| 1e3 * threads as f64 / nanos)
                    .collect();
                cells.push(report::spread(&millions, 2));
            }
        }
    }
    cells.iter().for_each(|cells| table.row(cells));
    table.text()
}

fn contender(peer: &dyn Peer, steps: usize) -> Contender<'_> {
    Box::new(move |_, _| {
        for _ in 0..steps {
            black_box(peer.decide(black_box(IpAddr::V4(Ipv4Addr::LOCALHOST))));
        }
        steps
    })
}

/// limitador's windows are whole seconds.
fn in_seconds(limit: Limit) -> Limit {
    if limit.burst == 1 {
        limit
    } else {
        Limit {
            every: std::time::Duration::from_secs(1),
            burst: limit.burst,
        }
    }
}
