use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// The boards that a page may show. There are several only where the limits of a layer are replaced: each version of
/// them that differs in what a board knows of limits has one.
pub(super) struct Shown<B>(Mutex<Vec<Arc<B>>>);

impl<B> Default for Shown<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B> Shown<B> {
    pub(super) fn add(&self, board: Arc<B>) {
        lock(&self.0).push(board);
    }

    /// The latest board that a layer, a service or a request has beside the page, and whether there is one. If there is
    /// none, the latest of all.
    pub(super) fn latest(&self) -> Option<(Arc<B>, bool)> {
        let mut boards = lock(&self.0);
        // A version that was never in force has left its board behind.
        if boards.iter().any(is_reported_to) {
            boards.retain(is_reported_to);
            boards.last().map(|board| (Arc::clone(board), true))
        } else {
            boards.last().map(|board| (Arc::clone(board), false))
        }
    }

    /// The latest board, if another layer whose limits are replaced together with those of `former` has made it, and if
    /// it is of their new limits.
    #[cfg(feature = "rules")]
    pub(super) fn made_for(&self, is_of: impl Fn(&B) -> bool, former: &Arc<B>) -> Option<Arc<B>> {
        let boards = lock(&self.0);
        boards.last().filter(|last| !Arc::ptr_eq(last, former) && is_of(last)).cloned()
    }
}

fn is_reported_to<B>(board: &Arc<B>) -> bool {
    Arc::strong_count(board) > 1
}
