//! Gauges of what rises and falls.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::Gauge;

/// A number that rises and falls, counted from the start: a recorder may be installed while it is
/// not zero.
#[derive(Debug, Default)]
pub(super) struct Level(AtomicU64);

impl Level {
    pub(super) fn change(&self, by: i64, gauge: Option<&Gauge>) {
        // It wraps, so a negative number subtracts.
        self.0.fetch_add(by.cast_unsigned(), Ordering::AcqRel);
        if let Some(gauge) = gauge {
            show(gauge, || self.0.load(Ordering::Acquire));
        }
    }
}

/// Sets a gauge to a number that other threads change and show too. The number is read again after
/// it is shown, so that of several threads the last to set the gauge has set what is true.
pub(super) fn show(gauge: &Gauge, number: impl Fn() -> u64) {
    let mut shown = number();
    loop {
        gauge.set(shown as f64);
        let now = number();
        if now == shown {
            return;
        }
        shown = now;
    }
}

#[cfg(test)]
mod tests {

    use std::sync::{Arc, Mutex};

    use metrics::GaugeFn;

    use super::*;

    /// A gauge during whose first setting another thread raises the level by five.
    struct Interrupted {
        level: Arc<Level>,
        shown: Mutex<Vec<f64>>,
    }

    impl GaugeFn for Interrupted {
        fn set(&self, value: f64) {
            let mut shown = self.shown.lock().unwrap();
            if shown.is_empty() {
                self.level.0.fetch_add(5, Ordering::AcqRel);
            }
            shown.push(value);
        }

        fn increment(&self, _: f64) {
            unreachable!("levels are set");
        }

        fn decrement(&self, _: f64) {
            unreachable!("levels are set");
        }
    }

    #[test]
    fn gauge_shows_what_has_changed_while_it_was_set() {
        let level = Arc::new(Level::default());
        let recorder = Arc::new(Interrupted {
            level: Arc::clone(&level),
            shown: Mutex::default(),
        });
        let gauge = Gauge::from_arc(Arc::clone(&recorder));
        level.change(1, Some(&gauge));
        level.change(-2, Some(&gauge));
        assert_eq!(*recorder.shown.lock().unwrap(), [1.0, 6.0, 4.0]);
    }
}
