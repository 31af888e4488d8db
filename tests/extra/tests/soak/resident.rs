//! How large the process is, and messages that are seen while a test runs.

use std::fs;
use std::io::{Write, stderr};

/// The resident memory of this process in KiB.
pub(crate) fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a Linux system");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect(
            "a resident \
        size",
        );
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

/// Prints a line past the test harness, which shows nothing of a test that passes.
pub(crate) fn progress(line: &str) {
    writeln!(stderr(), "{line}").expect("a place to print to");
}
