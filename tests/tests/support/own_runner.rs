//! The `main` of a test program with one test, which starts itself again as the processes of a
//! fleet.

use std::env;
use std::process::ExitCode;

/// Runs the test if the arguments choose it, and reports as the standard test runner does.
pub(crate) async fn run(name: &str, check: impl AsyncFnOnce() -> Result<(), String>) -> ExitCode {
    let wanted: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let chosen = wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str()));
    if env::args().any(|word| word == "--list") {
        if chosen {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    if chosen {
        match check().await {
            Ok(()) => {
                println!("test {name} ... ok");
                passed += 1;
            }
            Err(wrong) => {
                println!("test {name} ... FAILED\n    {wrong}");
                failed += 1;
            }
        }
    }
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    let left_out = u8::from(!chosen);
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; \
            {left_out} filtered out\n"
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
