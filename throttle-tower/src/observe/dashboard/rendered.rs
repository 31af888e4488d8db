use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::board::Board;
use super::data::{Data, LISTED};
use crate::lock::lock;
use crate::observe::Offender;

/// What the readers of a page get. It is written once a second at most, however many readers there are, and no request
/// waits for it.
pub(super) struct Rendered {
    board: Arc<Board>,
    offenders: Box<dyn Fn(usize) -> Vec<Offender> + Send + Sync>,
    /// The event of a second, by the second.
    latest: Mutex<Option<(u64, Bytes)>>,
}

/// How an event starts and ends. A browser whose connection has ended comes back after so many milliseconds.
const START: &str = "retry: 1000\ndata: ";
const END: &str = "\n\n";

impl Rendered {
    pub(super) fn new(board: Arc<Board>, offenders: impl Fn(usize) -> Vec<Offender> + Send + Sync + 'static) -> Self {
        Self { board, offenders: Box::new(offenders), latest: Mutex::default() }
    }

    /// The data as an event.
    pub(super) fn event(&self) -> Bytes {
        let moment = self.board.moment();
        let mut latest = lock(&self.latest);
        if let Some((second, event)) = &*latest
            && *second == moment.running
        {
            return event.clone();
        }
        let offenders = (self.offenders)(LISTED);
        let data = Data::of(&self.board, &offenders, &moment, self.is_reported_to());
        let json = serde_json::to_string(&data).expect("it has text for keys, and nothing in it can fail");
        let event = Bytes::from(format!("{START}{json}{END}"));
        *latest = Some((moment.running, event.clone()));
        event
    }

    /// The data alone.
    pub(super) fn json(&self) -> Bytes {
        let event = self.event();
        event.slice(START.len()..event.len() - END.len())
    }

    /// Whether a layer, a service or a request has the board beside this.
    fn is_reported_to(&self) -> bool {
        Arc::strong_count(&self.board) > 1
    }
}
