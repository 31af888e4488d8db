use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// The boards that a page may show. There are several only where the limits of a layer are
/// replaced: each version of them that differs in what a board knows of limits has one.
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

    /// The latest board that a layer, a service or a request has beside the page, and whether there
    /// is one. If there is none, the latest of all.
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

    /// The latest board, if another layer whose limits are replaced together with those of `former`
    /// has made it, and if it is of their new limits.
    pub(super) fn made_for(&self, is_of: impl Fn(&B) -> bool, former: &Arc<B>) -> Option<Arc<B>> {
        let boards = lock(&self.0);
        boards
            .last()
            .filter(|last| !Arc::ptr_eq(last, former) && is_of(last))
            .cloned()
    }
}

fn is_reported_to<B>(board: &Arc<B>) -> bool {
    Arc::strong_count(board) > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latest(shown: &Shown<u32>) -> Option<(u32, bool)> {
        shown
            .latest()
            .map(|(board, is_reported_to)| (*board, is_reported_to))
    }

    #[test]
    fn latest_board_that_is_reported_to_is_shown_and_else_the_latest() {
        let shown = Shown::default();
        assert_eq!(latest(&shown), None);
        let [one, two, three] = [1, 2, 3].map(Arc::new);
        [&one, &two, &three]
            .into_iter()
            .for_each(|board| shown.add(Arc::clone(board)));
        drop(three);
        assert_eq!(
            latest(&shown),
            Some((2, true)),
            "the third was never in force"
        );
        shown.add(Arc::new(4));
        drop((one, two));
        assert_eq!(
            latest(&shown),
            Some((4, false)),
            "of those that nothing reports to"
        );
    }

    /// Layers that share a page report to one board, also after their limits were replaced.
    #[test]
    fn board_that_another_layer_made_for_the_new_limits_is_reused() {
        let shown = Shown::default();
        let [former, made] = [1, 2].map(Arc::new);
        assert_eq!(shown.made_for(|_| true, &former), None, "there is none");
        shown.add(Arc::clone(&former));
        assert_eq!(
            shown.made_for(|_| true, &former),
            None,
            "the one that is replaced"
        );
        shown.add(Arc::clone(&made));
        assert!(
            shown
                .made_for(|board| *board == 2, &former)
                .is_some_and(|board| Arc::ptr_eq(&board, &made))
        );
        assert_eq!(
            shown.made_for(|board| *board == 1, &former),
            None,
            "of other limits"
        );
    }
}
