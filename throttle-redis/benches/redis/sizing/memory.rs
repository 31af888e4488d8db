//! Memory of a key at the server.

use throttle_core::{
    CalendarQuota, ConfigError, FixedWindow, Gcra, IntoAlgorithm, LeakyMeter, Policy, PolicySet,
    Rate, SlidingLog, SlidingWindow, TokenBucket,
};
use throttle_test_servers::Server;

use super::client::Client;
use super::progress;

const KEYS: u64 = 100_000;

/// Prints the bytes of a key for each algorithm, and returns those of the first.
pub(super) fn measure(server: &Server) -> f64 {
    let rate = Rate::per_day(1_000);
    let rows = [
        ("GCRA", policy(Gcra::new(rate)), 1),
        ("token bucket", policy(TokenBucket::new(rate)), 1),
        ("leaky meter", policy(LeakyMeter::new(rate)), 1),
        ("fixed window", policy(FixedWindow::new(rate)), 1),
        ("calendar quota", policy(CalendarQuota::daily(1_000)), 1),
        ("sliding window", policy(SlidingWindow::new(rate)), 1),
        (
            "sliding window of 60 parts",
            policy(SlidingWindow::new(rate).buckets(60)),
            1,
        ),
        ("sliding log, 1 entry", policy(SlidingLog::new(rate)), 1),
        ("sliding log, 10 entries", policy(SlidingLog::new(rate)), 10),
    ];
    println!("| algorithm | bytes a key |\n|---|---|");
    let mut first = None;
    for (name, policy, decisions) in rows {
        progress(&format!("memory of {name}"));
        let bytes = bytes_of_a_key(server, policy.expect("a policy"), decisions);
        println!("| {name} | {bytes:.0} |");
        first.get_or_insert(bytes);
    }
    println!();
    first.expect("there are rows")
}

fn policy(algorithm: impl IntoAlgorithm) -> Result<Policy, ConfigError> {
    Policy::new("per-user", algorithm)
}

/// What `used_memory` grows by, for each of the keys, when all have been decided about so often.
fn bytes_of_a_key(server: &Server, policy: Policy, decisions: u64) -> f64 {
    let used = || -> f64 { server.info("used_memory").parse().expect("a number") };
    let client = Client::new(server, PolicySet::new(policy).expect("a set"));
    server.command(&["FLUSHALL"]);
    let before = used();
    for _ in 0..decisions {
        client.decide(0..KEYS, 256);
    }
    (used() - before) / KEYS as f64
}
