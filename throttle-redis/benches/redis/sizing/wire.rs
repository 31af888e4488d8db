//! Bytes between a process and the server.

use throttle_core::PolicySet;
use throttle_test_servers::Server;

use super::client::Client;
use super::{one_limit, progress, three_limits};

const KEYS: u64 = 20_000;

/// Prints the bytes of payload in both directions. Returns those of a call of one decision, and of
/// a call of three limits.
pub(super) fn measure(server: &Server) -> [f64; 2] {
    println!("| known keys | bytes to the server | from it |\n|---|---|---|");
    let alone = row(server, "a decision in a call of its own", one_limit(), 1);
    row(
        server,
        "a decision in a batch of up to 64",
        one_limit(),
        256,
    );
    let three = row(server, "three limits in one call", three_limits(), 1);
    println!();
    [alone, three]
}

fn row(server: &Server, name: &str, set: PolicySet, at_once: u64) -> f64 {
    progress(&format!("bytes of {name}"));
    let client = Client::new(server, set);
    let count = |what: &str| server.info(what).parse::<f64>().expect("a number");
    let count = || ["total_net_input_bytes", "total_net_output_bytes"].map(count);
    client.decide(0..KEYS, 256);
    let before = count();
    client.decide(0..KEYS, at_once);
    let after = count();
    let [question, answer] = [0, 1].map(|way| (after[way] - before[way]) / KEYS as f64);
    println!("| {name} | {question:.0} | {answer:.0} |");
    question + answer
}
