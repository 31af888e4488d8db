//! Counts instructions with valgrind's callgrind.

use std::env;
use std::process::Command;

/// The first argument of a program that is to run the requests that are counted.
pub(crate) const CHILD: &str = "--count";

/// The instructions of this program's requests, in a process of its own: those of its function
/// `counted_requests`.
///
/// # Panics
///
/// If there is no valgrind.
pub(crate) fn total(place: usize, requests: usize) -> u64 {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*counted_requests*",
        ])
        .arg(env::current_exe().expect("a running program has a path"))
        .args([CHILD, &place.to_string(), &requests.to_string()])
        .output()
        .expect("valgrind is installed: apt-get install valgrind");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .map(|(_, number)| number.trim());
    collected
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("callgrind counted nothing: {text}"))
}
