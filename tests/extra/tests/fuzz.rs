//! A fuzzer finds no text on which the reader of rule files fails, in a short time. `sh tests/fuzz.sh` gives it more.

use std::process::Command;

/// The seed stands still, so that a change is not refused for what another one has brought.
#[test]
fn no_text_of_a_fuzzer_makes_the_reader_of_rules_fail() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz.sh");
    let output = Command::new("sh").args([script, "20", "-seed=1"]).output().expect("a shell");
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).join("\n");
    assert!(output.status.success(), "{said}");
    for name in ["read", "replace"] {
        assert!(said.contains(&format!("{name}: no failure")), "{said}");
    }
    // The files of the tests are some 360. A fuzzer that reads no more than those has not looked.
    let runs = said.lines().filter_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let runs: Vec<u64> = runs.map(|runs| runs.trim().parse().expect("a number")).collect();
    assert!(runs.len() == 2 && runs.iter().all(|runs| *runs > 500), "{runs:?} runs\n{said}");
}
