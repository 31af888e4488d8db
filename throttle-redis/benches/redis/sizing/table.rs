//! How many servers these figures take.

use super::work::Work;

/// Of a server's core, in use.
const LOAD: f64 = 0.5;
/// Headers of a packet: Ethernet, IP and TCP with timestamps. A call takes three packets: question,
/// answer and one acknowledgement.
const HEADERS: f64 = 66.0;
const PACKETS: f64 = 3.0;
const ROUND_TRIP: f64 = 0.000_5;

/// What one request asks of a store.
struct Request {
    name: &'static str,
    calls: f64,
    /// µs of the server.
    work: f64,
    /// Bytes of payload.
    bytes: f64,
    keys: f64,
}

pub(super) fn print(work: &Work, &[bytes, bytes_of_three]: &[f64; 2], memory: f64) {
    let requests = [
        Request {
            name: "one limit",
            calls: 1.0,
            work: work.alone,
            bytes,
            keys: 1.0,
        },
        Request {
            name: "three limits in one call",
            calls: 1.0,
            work: work.three,
            bytes: bytes_of_three,
            keys: 3.0,
        },
        Request {
            name: "three limits in three slots",
            calls: 3.0,
            work: 3.0 * work.alone,
            bytes: 3.0 * bytes,
            keys: 3.0,
        },
    ];
    println!("From these figures, by the formulas of SIZING.md (arithmetic, not measured):\n");
    println!(
        "| requests/s | processes | a request | primaries at {:.0} % | busy | p99 wait, µs | \
            decisions/s of a process at a server | Gbit/s | GB for 10 M keys a limit |",
        LOAD * 100.0
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (rate, processes) in [(1e4, 10.0), (1e5, 100.0), (1e6, 1_000.0)] {
        for request in &requests {
            row(rate, processes, request, memory);
        }
    }
    let saved = 1.0 - work.batched / work.alone;
    println!(
        "\nA full batch saves {:.0} % of a decision. Calls carry one decision each unless a process \
            has more than {:.0} decisions a second for one server, with a round trip of {} ms.",
        saved * 100.0,
        6.0 / ROUND_TRIP,
        ROUND_TRIP * 1e3
    );
}

fn row(rate: f64, processes: f64, request: &Request, memory: f64) {
    let needed = rate * request.work * 1e-6;
    let primaries = (needed / LOAD).ceil();
    let busy = needed / primaries;
    let service = request.work / request.calls;
    // The tail of the wait in M/D/1.
    let wait = ((100.0 * busy).ln() * service / (2.0 * (1.0 - busy))).max(0.0);
    let wire = rate * (request.bytes + request.calls * PACKETS * HEADERS) * 8.0;
    println!(
        "| {rate} | {processes} | {} | {primaries} | {:.0} % | {wait:.0} | {:.0} | {:.2} | {:.1} |",
        request.name,
        busy * 100.0,
        rate * request.calls / processes / primaries,
        wire / 1e9,
        1e7 * memory * request.keys / 1e9,
    );
}
