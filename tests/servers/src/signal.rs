//! Signals by the shell's own `kill`: a system call would need unsafe code, and the separate
//! program may be missing.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::wait::until;

/// Sends a signal by its name, without `SIG`.
///
/// # Panics
///
/// If there is no such process.
pub(crate) fn send(name: &str, pid: u32) {
    let sent = Command::new("sh")
        .args([
            "-c",
            r#"kill -s "$1" "$2""#,
            "signal",
            name,
            &pid.to_string(),
        ])
        .status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "could not send SIG{name} to process {pid}"
    );
}

/// Stops a process, and returns when it stands still: after the signal alone it could still answer
/// for a moment.
pub(crate) fn stop(pid: u32) {
    send("STOP", pid);
    until(Duration::from_secs(2), "the process to stop", || {
        state(pid).is_none_or(|state| state == 'T').then_some(())
    });
}

/// Lets a stopped process continue.
pub(crate) fn cont(pid: u32) {
    send("CONT", pid);
}

/// The letter of a process's state, if the system has a `/proc`. It follows the name, which may
/// contain anything.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}
