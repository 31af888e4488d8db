use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

thread_local! {
    static IS_CORRECTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs a step that no request waits for, such as a settlement, or a decision whose request was
/// dropped. Layers call it, so that a backend can [find out](is_correction).
///
/// ```
/// use throttle_core::backend::{correction, is_correction};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// assert!(correction(async { is_correction() }).await);
/// assert!(!is_correction());
/// # });
/// ```
///
/// # Cancel safety
///
/// As cancel safe as the step.
pub async fn correction<T>(step: impl Future<Output = T>) -> T {
    let mut step = pin!(step);
    poll_fn(|cx| {
        let _former = FormerMark(IS_CORRECTION.replace(true));
        step.as_mut().poll(cx)
    })
    .await
}

/// Whether the future that is polled on this thread is a [`correction`]. A backend may wait longer
/// for the answer than for that of a decision, because no request waits.
#[must_use]
pub fn is_correction() -> bool {
    IS_CORRECTION.get()
}

/// Sets back what was before, also after a panic.
struct FormerMark(bool);

impl Drop for FormerMark {
    fn drop(&mut self) {
        IS_CORRECTION.set(self.0);
    }
}
