//! A fuzzer finds nothing on which a target of `tests/fuzz` fails, in a short time.
//! `sh tests/fuzz.sh` gives it more.

use std::process::Command;

/// What each target must have tried at least. The rule files of the tests are some 360, and a
/// fuzzer that reads no more than those has not looked. Values are stored on a server, and wait for
/// its answers.
const TARGETS: [(&str, u64); 8] = [
    ("addresses", 500),
    ("grpc", 500),
    ("read", 500),
    ("replace", 400),
    ("snapshot", 500),
    ("store", 500),
    ("stored", 50),
    ("upstream", 500),
];

/// The seed stands still, so that a change is not refused for what another one has brought.
#[test]
fn no_input_of_a_fuzzer_makes_a_target_fail() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz.sh");
    let output = Command::new("sh")
        .args([script, "6", "-seed=1"])
        .output()
        .expect("a shell");
    let said = [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .join("\n");
    assert!(output.status.success(), "{said}");
    let runs = said
        .lines()
        .filter_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let runs: Vec<u64> = runs
        .map(|runs| runs.trim().parse().expect("a number"))
        .collect();
    assert_eq!(runs.len(), TARGETS.len(), "{said}");
    for ((name, least), runs) in TARGETS.into_iter().zip(runs) {
        assert!(said.contains(&format!("{name}: no failure")), "{said}");
        assert!(runs > least, "{runs} runs of {name}\n{said}");
    }
}
