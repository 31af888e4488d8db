//! Clients in other languages: the programs in `sdks`, which `tests/extra.sh` gives their packages.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// Longer than a client takes to start, and than a slow machine takes to answer.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub enum Language {
    Python,
    JavaScript,
}

/// Runs a program of `sdks`, and returns what it printed, or `None` if it has not ended by then.
///
/// # Panics
///
/// If the program fails.
pub async fn run(
    language: Language,
    script: &str,
    arguments: &[&str],
    patience: Duration,
) -> Option<String> {
    let (program, folder): (OsString, _) = match language {
        Language::Python => (
            variable("THROTTLE_PYTHON"),
            Path::new(env!("CARGO_MANIFEST_DIR")).join("sdks"),
        ),
        // A module finds its packages beside itself.
        Language::JavaScript => ("node".into(), packages()),
    };
    let child = Command::new(program)
        .arg(folder.join(script))
        .args(arguments)
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("an interpreter");
    let output = timeout(patience, child.wait_with_output())
        .await
        .ok()?
        .expect(
            "the output of a \
        child",
        );
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{script} {arguments:?}: {said} {errors}"
    );
    Some(said)
}

/// Runs a program of `sdks`, and returns the JSON that it printed.
///
/// # Panics
///
/// If it fails, has not ended after [`PATIENCE`], or printed something else.
pub async fn json(language: Language, script: &str, arguments: &[&str]) -> Value {
    let said = run(language, script, arguments, PATIENCE).await;
    let said = said.unwrap_or_else(|| {
        panic!(
            "{script} {arguments:?} did not end within \
        {PATIENCE:?}"
        )
    });
    serde_json::from_str(&said)
        .unwrap_or_else(|error| panic!("{script} {arguments:?}: {error}: {said}"))
}

/// The folder with the packages of Node.js.
pub fn packages() -> PathBuf {
    variable("THROTTLE_SDKS").into()
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: use tests/extra.sh"))
}
