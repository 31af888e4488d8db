use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// An instant that is noted and read without a lock, to the microsecond. At first there is none.
#[derive(Debug)]
pub(super) struct Moment {
    began: Instant,
    /// Since the beginning; 0 for none.
    micros: AtomicU64,
}

impl Default for Moment {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            micros: AtomicU64::new(0),
        }
    }
}

impl Moment {
    /// Notes the present instant. Returns it, in microseconds since the beginning.
    #[inline]
    pub(super) fn note(&self) -> u64 {
        let micros = self.micros_since_beginning().max(1);
        self.micros.store(micros, Ordering::Release);
        micros
    }

    #[inline]
    pub(super) fn micros_since_beginning(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn clear(&self) {
        self.micros.store(0, Ordering::Release);
    }

    #[inline]
    pub(super) fn get(&self) -> Option<Instant> {
        let micros = self.micros.load(Ordering::Acquire);
        (micros > 0).then(|| self.began + Duration::from_micros(micros))
    }
}
