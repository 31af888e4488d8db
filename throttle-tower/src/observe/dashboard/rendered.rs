use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::board::Board;
use super::data::{LISTED, data};
use crate::Offenders;
use crate::candidate::Flips;
use crate::lock::lock;

/// What the readers of a page get. It is written once a second at most, however many readers there
/// are, and no request waits for it.
pub(super) struct PageData {
    pub(super) board: Arc<Board>,
    pub(super) offenders: Offenders,
    pub(super) candidates: Vec<(String, Arc<FlipsOf>)>,
    /// The name of the service.
    pub(super) service: Option<String>,
    /// The event of a second.
    pub(super) latest: Mutex<Option<(u64, Bytes)>>,
}

/// Reads what a candidate would have done.
pub(super) type FlipsOf = dyn Fn() -> Flips + Send + Sync;

/// How an event starts and ends. A browser whose connection has ended comes back after so many
/// milliseconds.
const START: &str = "retry: 1000\ndata: ";
const END: &str = "\n\n";

impl PageData {
    /// The data as an event.
    pub(super) fn event(&self) -> Bytes {
        let mut latest = lock(&self.latest);
        let moment = self.board.moment();
        if let Some((second, event)) = &*latest
            && *second == moment.running
        {
            return event.clone();
        }
        let candidates = self.candidates.iter();
        let candidates: Vec<_> = candidates
            .map(|(name, flips)| (name.clone(), flips()))
            .collect();
        let data = data(
            &self.board,
            self.service.as_deref(),
            &self.offenders.list(LISTED),
            &candidates,
            &moment,
        );
        let event = Bytes::from(format!("{START}{data}{END}"));
        *latest = Some((moment.running, event.clone()));
        event
    }

    /// The data alone.
    pub(super) fn json(&self) -> Bytes {
        let event = self.event();
        event.slice(START.len()..event.len() - END.len())
    }
}
