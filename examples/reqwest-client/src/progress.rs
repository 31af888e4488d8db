//! A bar that shows how far the batch has come, and which hosts are paused.

use indicatif::{ProgressBar, ProgressStyle};
use throttle_tower::shape::{Pause, PauseCause, Shaper};
use tokio::time::Instant;

pub struct Progress(ProgressBar);

impl Progress {
    /// A bar on standard error. Nothing is drawn where standard error is not a terminal.
    pub fn new(total: u64) -> Self {
        let style =
            ProgressStyle::with_template("{bar:30} {pos} of {len} sent at {per_sec:.0}, {msg}");
        Self(ProgressBar::new(total).with_style(style.expect("a valid template")))
    }

    /// Shows the calls of all hosts, and the pauses of those that have one.
    pub fn show(&self, shaper: &Shaper, hosts: &[String]) {
        let stats = shaper.stats();
        let (waiting, refused) = (stats.waiting, stats.refused);
        let pauses = hosts.iter().filter_map(|host| {
            let paused = shaper.paused_until(host.as_str())?;
            Some(format!(", {}", pause(host, paused)))
        });
        let pauses: String = pauses.collect();
        self.0
            .set_message(format!("{waiting} waiting, {refused} refused{pauses}"));
        self.0.set_position(stats.sent);
    }

    /// Leaves the bar as it is and moves to the next line.
    pub fn end(&self) {
        self.0.abandon();
    }
}

/// Describes a pause of a host: how long it still lasts, and why.
fn pause(host: &str, Pause { until, cause, .. }: Pause) -> String {
    let left = until.saturating_duration_since(Instant::now()).as_secs() + 1;
    match cause {
        PauseCause::Refusal(status) => format!("{host} refuses for {left} s ({status})"),
        PauseCause::NothingLeft => format!("{host} has nothing left for {left} s"),
        _ => format!("{host} is paused for {left} s"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throttle_tower::{Pace, Rate};

    use super::*;

    #[tokio::test]
    async fn a_pause_is_shown_with_its_cause_and_the_time_that_is_left() -> anyhow::Result<()> {
        let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(60));
        let shaper = Shaper::new(pace)?;
        let headers = [(reqwest::header::RETRY_AFTER, "30".parse()?)]
            .into_iter()
            .collect();
        shaper.obey(
            "host",
            Instant::now(),
            reqwest::StatusCode::TOO_MANY_REQUESTS,
            &headers,
        );
        let shown = shaper
            .paused_until("host")
            .map(|paused| pause("host", paused));
        assert_eq!(
            shown.as_deref(),
            Some("host refuses for 30 s (429 Too Many Requests)")
        );
        Ok(())
    }
}
