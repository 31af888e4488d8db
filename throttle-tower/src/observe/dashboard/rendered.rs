use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::time::Instant;

use super::board::Board;
use super::data::{LISTED, data};
use super::shown::Shown;
use crate::Offender;
use crate::lock::lock;

/// What the readers of a page get. It is written once a second at most, however many readers there
/// are, and no request waits for it.
pub(super) struct Rendered {
    shown: Arc<Shown<Board>>,
    offenders: Box<Offenders>,
    /// The name of the service.
    service: Option<String>,
    /// The event of a second, by the second and the board's start.
    latest: Mutex<Option<((Instant, u64), Bytes)>>,
}

/// The keys of a board that were refused most, so many of them.
type Offenders = dyn Fn(&Board, usize) -> Vec<Offender> + Send + Sync;

/// How an event starts and ends. A browser whose connection has ended comes back after so many
/// milliseconds.
const START: &str = "retry: 1000\ndata: ";
const END: &str = "\n\n";

impl Rendered {
    /// There is a board.
    pub(super) fn new(
        shown: Arc<Shown<Board>>,
        offenders: impl Fn(&Board, usize) -> Vec<Offender> + Send + Sync + 'static,
    ) -> Self {
        Self {
            shown,
            offenders: Box::new(offenders),
            service: None,
            latest: Mutex::default(),
        }
    }

    pub(super) fn of_service(self, name: String) -> Self {
        Self {
            service: Some(name),
            ..self
        }
    }

    /// The data as an event.
    pub(super) fn event(&self) -> Bytes {
        // Under the lock, because a board that another reader has seems to be reported to.
        let mut latest = lock(&self.latest);
        let (board, is_reported_to) = self.shown.latest().expect("a page has a board");
        let moment = board.moment();
        let second = (board.started, moment.running);
        if let Some((of, event)) = &*latest
            && *of == second
        {
            return event.clone();
        }
        let offenders = (self.offenders)(&board, LISTED);
        let data = data(
            &board,
            self.service.as_deref(),
            &offenders,
            &moment,
            is_reported_to,
        );
        let event = Bytes::from(format!("{START}{data}{END}"));
        *latest = Some((second, event.clone()));
        event
    }

    /// The data alone.
    pub(super) fn json(&self) -> Bytes {
        let event = self.event();
        event.slice(START.len()..event.len() - END.len())
    }
}
