//! What goes wrong, again and again: Redis stands still, is killed, loses its states, and the rules
//! change.

use std::time::Duration;

use throttle_test_servers::Server;

use super::app::App;
use super::resident::progress;

/// How long the server stands still or is gone.
const FOR: Duration = Duration::from_secs(2);

pub(crate) struct Faults {
    every: Duration,
    caused: u32,
    lost: u32,
    /// When the present fault is over, and whether the server is to be started again.
    until: Option<(Duration, bool)>,
}

impl Faults {
    pub(crate) fn every(seconds: u64) -> Self {
        Self {
            every: Duration::from_secs(seconds),
            caused: 0,
            lost: 0,
            until: None,
        }
    }

    /// Called every second or so.
    pub(crate) async fn tick(&mut self, now: Duration, server: &Server, app: &App) {
        if self.until.is_some_and(|(until, _)| now >= until) {
            self.end(server);
        }
        if now < self.every * (self.caused + 1) || self.until.is_some() {
            return;
        }
        app.reload(self.caused);
        match self.caused % 3 {
            0 => {
                progress("       Redis stands still");
                server.stop();
                self.until = Some((now + FOR, false));
            }
            1 => {
                progress("       Redis is killed");
                server.kill();
                (self.until, self.lost) = (Some((now + FOR, true)), self.lost + 1);
            }
            _ => {
                progress("       Redis starts again, empty");
                server.restart();
                self.lost += 1;
            }
        }
        self.caused += 1;
    }

    /// Redis answers again.
    pub(crate) fn end(&mut self, server: &Server) {
        match self.until.take() {
            Some((_, true)) => server.restart(),
            Some((_, false)) => server.cont(),
            None => {}
        }
    }

    pub(crate) fn caused(&self) -> u32 {
        self.caused
    }

    /// How often Redis has lost all states.
    pub(crate) fn lost_states(&self) -> u32 {
        self.lost
    }
}
