//! Log lines for which many requests may give cause.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a line is not repeated.
const PAUSE: Duration = Duration::from_secs(60);

/// Lets a log line pass at most once a minute.
#[derive(Debug, Default)]
pub(crate) struct OncePerMinute(Mutex<Option<LastWarning>>);

#[derive(Debug)]
struct LastWarning {
    at: Instant,
    kept_back: u64,
}

impl OncePerMinute {
    /// Returns how many lines were kept back since the last one, if it is time for the next.
    pub(crate) fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        let mut logged = self.0.lock();
        match &mut *logged {
            Some(LastWarning { at, kept_back }) if now.saturating_duration_since(*at) < PAUSE => {
                *kept_back += 1;
                None
            }
            logged => logged
                .replace(LastWarning {
                    at: now,
                    kept_back: 0,
                })
                .map_or(Some(0), |logged| Some(logged.kept_back)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_passes_once_a_minute_with_the_number_of_those_kept_back() {
        let line = OncePerMinute::default();
        assert_eq!(
            [line.pass(), line.pass(), line.pass()],
            [Some(0), None, None]
        );
        advance(PAUSE).await;
        assert_eq!([line.pass(), line.pass()], [Some(2), None]);
    }
}
