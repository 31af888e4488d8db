//! Waiting for something to become true.

use std::thread;
use std::time::{Duration, Instant};

/// Asks again and again, for `limit` at most, and hands back what was found.
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

/// The same, for what must come about.
///
/// # Panics
///
/// If it does not in time, with `what` was awaited.
pub(crate) fn until<T>(limit: Duration, what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(limit, ask).unwrap_or_else(|| panic!("waited {limit:?} in vain for {what}"))
}
