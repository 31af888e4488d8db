//! Late answers that count only if their server gives no sign of life.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Late answers since the server was asked.
#[derive(Debug, Default)]
pub(super) struct Doubt(Mutex<Option<Asked>>);

#[derive(Debug)]
struct Asked {
    at: Instant,
    late: u32,
}

impl Doubt {
    /// Adds a late answer. Returns whether to ask the server: nothing asks it, or what asked it has
    /// not ended after `patience`, because its runtime stands still.
    pub(super) fn add(&self, patience: Duration) -> bool {
        let (now, mut asked) = (Instant::now(), self.0.lock());
        let late = asked.as_ref().map_or(0, |asked| asked.late) + 1;
        let is_asked = asked
            .as_ref()
            .is_some_and(|asked| now < asked.at + patience);
        let at = asked
            .as_ref()
            .filter(|_| is_asked)
            .map_or(now, |asked| asked.at);
        *asked = Some(Asked { at, late });
        !is_asked
    }

    /// Returns how many answers were late.
    pub(super) fn end(&self) -> u32 {
        self.0.lock().take().map_or(0, |asked| asked.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_answers_count_while_the_server_is_asked() {
        let (doubt, patience) = (Doubt::default(), Duration::from_millis(50));
        assert_eq!([doubt.add(patience), doubt.add(patience)], [true, false]);
        assert_eq!((doubt.end(), doubt.end()), (2, 0));
        assert!(doubt.add(patience));
        tokio::time::advance(patience).await;
        assert!(doubt.add(patience) && !doubt.add(patience));
        assert_eq!(doubt.end(), 3);
    }
}
