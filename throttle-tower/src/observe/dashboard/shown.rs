use std::sync::{Arc, Mutex};

use super::board::Board;
use crate::lock::lock;
#[cfg(feature = "rules")]
use crate::throttle::Observed;

/// The boards that a page may show. There are several only where the limits of a layer are replaced: each version of
/// them that differs in what a board knows of limits has one.
#[derive(Default)]
pub(super) struct Shown(Mutex<Vec<Arc<Board>>>);

impl Shown {
    pub(super) fn add(&self, board: Arc<Board>) {
        lock(&self.0).push(board);
    }

    /// The latest board that a layer, a service or a request has beside the page, and whether there is one. If there is
    /// none, the latest of all.
    pub(super) fn latest(&self) -> Option<(Arc<Board>, bool)> {
        let mut boards = lock(&self.0);
        // A version that was never in force has left its board behind.
        if boards.iter().any(is_reported_to) {
            boards.retain(is_reported_to);
            boards.last().map(|board| (Arc::clone(board), true))
        } else {
            boards.last().map(|board| (Arc::clone(board), false))
        }
    }

    /// The board of these limits, if another layer whose limits are replaced together with those of `former` has made
    /// it.
    #[cfg(feature = "rules")]
    pub(super) fn made_for(&self, of: &Observed, former: &Arc<Board>) -> Option<Arc<Board>> {
        let boards = lock(&self.0);
        boards.last().filter(|last| !Arc::ptr_eq(last, former) && last.is_of(of)).cloned()
    }
}

fn is_reported_to(board: &Arc<Board>) -> bool {
    Arc::strong_count(board) > 1
}
