//! The memory that a key costs, and the time of the slowest insert. Each figure comes from a
//! process of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use crate::peers::{Governor, GovernorInformed, Limit, Peer, Throttle};
use crate::shape::waiting;
use crate::{alloc, report};

/// The argument that makes this program measure one thing and print numbers.
pub const CHILD: &str = "--child";

const MILLION: u32 = 1_000_000;
const ROUNDS: usize = 7;

/// Nothing is stale for an hour.
const LIVE: Limit = Limit {
    every: Duration::from_secs(3_600),
    burst: 1,
};
/// Stale after ten microseconds.
const STALE: Limit = Limit {
    every: Duration::from_micros(10),
    burst: 1,
};

/// Bytes of memory the process occupies.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok())
        .unwrap_or(0)
        * 1024
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    /// The first address of a /64.
    V6,
}

fn address(family: Family, n: u32) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(
            (0x2001_0db8_u128 << 96) | (u128::from(n) << 64),
        )),
    }
}

/// throttle's key for a /64 names the network; the other limiters get the masked address, which is
/// as large as any.
struct ByNetwork(Throttle);

impl Peer for ByNetwork {
    fn decide(&self, address: IpAddr) -> bool {
        self.0.ask(&[throttle_core::Key::builder()
            .network(address, 64)
            .finish()
            .into()])
    }
}

fn peer(name: &str, limit: Limit) -> Box<dyn Peer> {
    match name {
        "throttle" => Box::new(ByNetwork(Throttle::new(limit, MILLION as usize))),
        "informed" => Box::new(GovernorInformed::new(limit)),
        #[cfg(feature = "compare")]
        other => crate::compare::many_keys::peer(other, limit),
        #[cfg(not(feature = "compare"))]
        other => panic!("no peer {other:?}"),
    }
}

/// Measures one thing in this process.
pub fn child(args: &[String]) {
    let [what, name] = args else { return };
    let numbers = match what.as_str() {
        "v4" => bytes(name, Family::V4),
        "v6" => bytes(name, Family::V6),
        "inserts" => inserts(name),
        "live" => churn(name, LIVE),
        "futures" | "tasks" | "million" | "million first" => waiting::child(what, name),
        _ => churn(name, STALE),
    };
    println!(
        "{}",
        numbers
            .iter()
            .map(f64::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    );
}

/// Bytes a key: held, and resident.
fn bytes(name: &str, family: Family) -> Vec<f64> {
    alloc::count();
    let (resident_before, held_before) = (resident(), alloc::held());
    let peer = peer(name, LIVE);
    for n in 0..MILLION {
        peer.decide(address(family, n));
    }
    let held = alloc::held() - held_before;
    vec![
        held as f64 / f64::from(MILLION),
        (resident() - resident_before) as f64 / f64::from(MILLION),
    ]
}

/// Longest insert, the time that one in 10,000 exceeds, and the median, µs.
fn inserts(name: &str) -> Vec<f64> {
    let peer = peer(name, LIVE);
    let mut micros: Vec<f64> = (0..MILLION)
        .map(|n| {
            let start = Instant::now();
            peer.decide(address(Family::V4, n));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    [
        micros.len() - 1,
        micros.len() - micros.len() / 10_000,
        micros.len() / 2,
    ]
    .map(|n| micros[n])
    .to_vec()
}

/// Resident MB after the first million different keys, and after twenty.
fn churn(name: &str, limit: Limit) -> Vec<f64> {
    let governor = Governor::new(limit);
    let other = (name != "governor swept").then(|| peer(name, limit));
    let megabytes = || resident() as f64 / 1e6;
    let mut measured = vec![];
    for million in 0..20 {
        for n in million * MILLION..(million + 1) * MILLION {
            match &other {
                Some(peer) => peer.decide(address(Family::V4, n)),
                None => governor.decide(address(Family::V4, n)),
            };
        }
        if other.is_none() {
            governor.0.retain_recent();
            governor.0.shrink_to_fit();
        }
        if million == 0 || million == 19 {
            measured.push(megabytes());
        }
    }
    measured
}

/// The numbers of one child, one list of rounds for each.
pub fn measure(what: &str, name: &str, rounds: usize) -> Vec<Vec<f64>> {
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for _ in 0..rounds {
        let program = env::current_exe().expect("this program has a path");
        let output = process::Command::new(program)
            .args([CHILD, what, name])
            .output()
            .expect("this program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for (n, number) in text.split_whitespace().enumerate() {
            if columns.len() <= n {
                columns.push(Vec::new());
            }
            columns[n].push(number.parse().expect("a child prints numbers"));
        }
    }
    columns
}

pub fn run() {
    report::title(
        "Memory at 1 M different keys, bytes a key",
        &[
            "key",
            "throttle, held",
            "resident",
            "governor, held",
            "resident",
        ],
    );
    for (title, what) in [("IPv4", "v4"), ("IPv6 /64", "v6")] {
        let cells = ["throttle", "informed"].map(|name| measure(what, name, 1));
        let cells = cells
            .iter()
            .flatten()
            .map(|rounds| format!("{:.1}", rounds[0]));
        report::row(
            &[title.to_string()]
                .into_iter()
                .chain(cells)
                .collect::<Vec<_>>(),
        );
    }

    let columns = [
        "one insert, of 1 M",
        "longest, µs",
        "p99.99, µs",
        "median, µs",
    ];
    report::title(
        "Longest insert (timed one by one, clock included; medians of rounds, \
        least–most)",
        &columns,
    );
    for (title, name) in [("throttle", "throttle"), ("governor", "informed")] {
        let cells = measure("inserts", name, ROUNDS);
        let cells = cells
            .iter()
            .enumerate()
            .map(|(n, rounds)| report::spread(rounds, if n == 2 { 2 } else { 1 }));
        report::row(
            &[title.to_string()]
                .into_iter()
                .chain(cells)
                .collect::<Vec<_>>(),
        );
    }

    let columns = [
        "20 M different keys, at most 1 M held",
        "after 1 M, MB",
        "after 20 M, MB",
    ];
    report::title("Resident memory under churn", &columns);
    for (title, what, name) in [
        ("throttle, all live", "live", "throttle"),
        ("throttle, stale after 10 µs", "stale", "throttle"),
        ("governor, all live", "live", "informed"),
        ("governor, stale, never swept", "stale", "informed"),
        (
            "governor, stale, `retain_recent` each million",
            "stale",
            "governor swept",
        ),
    ] {
        let cells = measure(what, name, 1);
        let cells = cells.iter().map(|rounds| format!("{:.0}", rounds[0]));
        report::row(
            &[title.to_string()]
                .into_iter()
                .chain(cells)
                .collect::<Vec<_>>(),
        );
    }
}
