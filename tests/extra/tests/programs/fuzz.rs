//! A fuzzer finds nothing on which a target of `tests/fuzz` fails, in a short time.
//! `sh tests/fuzz.sh` gives it more.

use std::process::Command;

/// How many inputs each target reads. Some tenfold of the 360 rule files of the tests: a fuzzer that
/// reads no more than those has not looked. Values are stored on a server, and wait for its answers.
const TARGETS: [(&str, u64); 8] = [
    ("addresses", 200_000),
    ("grpc", 20_000),
    ("read", 4_000),
    ("replace", 2_000),
    ("snapshot", 100_000),
    ("store", 20_000),
    ("stored", 4_000),
    ("upstream", 40_000),
];

/// The seed and the number of inputs stand still, so that a change is not refused for what another
/// one has brought, or for the speed of a machine.
#[test]
fn no_input_of_a_fuzzer_makes_a_target_fail() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz.sh");
    for (name, inputs) in TARGETS {
        let output = Command::new("sh")
            .args([script, "300", name, "-seed=1", &format!("-runs={inputs}")])
            .output()
            .expect("a shell");
        let said = [&output.stdout[..], &output.stderr]
            .map(String::from_utf8_lossy)
            .join("\n");
        assert!(output.status.success(), "{said}");
        let runs = said
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        let runs: u64 = runs.expect("a count").trim().parse().expect("a number");
        assert!(
            runs >= inputs,
            "{runs} of {inputs} inputs in five minutes\n{said}"
        );
    }
}
