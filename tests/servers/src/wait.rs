//! Waits for something to become true.

use std::thread;
use std::time::{Duration, Instant};

/// Calls `ask` again and again, for at most `limit`, and returns what it found.
pub(crate) fn within<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let found = ask();
        if found.is_some() || start.elapsed() >= limit {
            return found;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Calls `ask` until it finds something.
///
/// # Panics
///
/// If it finds nothing in time; the message names `what` was awaited.
pub(crate) fn until<T>(limit: Duration, what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(limit, ask).unwrap_or_else(|| panic!("waited {limit:?} in vain for {what}"))
}
