//! What a layer holds whose limits are replaced while requests run. The rule file that replaces
//! them is in [`rules`](crate::rules): this file has what a request passes, and what the rules can
//! ask of any layer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};

use arc_swap::{ArcSwap, Guard};
use http::request::Parts;
use throttle_core::backend::{ExceptedKey, Exception};
use throttle_core::{Backend, BackendError, ConfigError};

use super::next::Next;
use super::shared::Shared;
use crate::limit::explained::Explanation;
use crate::lock::lock;

/// What the clones of a layer decide by, until it is replaced.
pub(crate) struct Live<B: Backend> {
    pub(crate) current: ArcSwap<Shared<B>>,
    followers: Arc<Followers>,
}

/// The layers that follow the same rules: one for each backend and each set of options, however
/// often it is cloned.
#[derive(Default)]
pub(crate) struct Followers(pub(crate) Mutex<Vec<Weak<dyn Follower>>>);

pub(crate) trait Follower: Send + Sync {
    /// Whether each limit must say what happens when the store fails.
    fn needs_on_error(&self) -> bool;

    /// What would happen to a request.
    fn explain<'a>(&self, parts: &'a Parts) -> Asking<'a, Explanation>;

    /// Changes the key of a request in a limit.
    fn change<'a>(&self, limit: &'a str, parts: &'a Parts, change: KeyChange) -> Asking<'a, bool>;

    /// The keys of a limit with an exception, at most so many.
    fn exceptions<'a>(&self, limit: &'a str, most: usize) -> Asking<'a, Vec<ExceptedKey>>;

    /// Builds what comes next. It is used once the result is called.
    ///
    /// # Errors
    ///
    /// If the limits cannot be enforced on this layer's backend.
    fn build(self: Arc<Self>, next: &Next<'_>) -> Result<Box<dyn FnOnce()>, ConfigError>;
}

/// What becomes of a key.
pub(crate) enum KeyChange {
    /// It is unused.
    Reset,
    /// It has an exception, or none any more.
    Except(Option<Exception>),
    /// What it had left is used up.
    Drain,
}

/// A question to a backend.
pub(crate) type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

impl<B: Backend> Live<B> {
    #[inline]
    pub(crate) fn now(&self) -> Guard<Arc<Shared<B>>> {
        self.current.load()
    }

    pub(super) fn fork(&self, build: impl FnOnce(&Shared<B>) -> Shared<B>) -> Arc<Self> {
        let Ok(fork) = self.try_fork(|shared| Ok::<_, Infallible>(build(shared)));
        fork
    }

    /// A layer that differs from this one, and follows the same rules.
    pub(super) fn try_fork<C: Backend, E>(
        &self,
        build: impl FnOnce(&Shared<B>) -> Result<Shared<C>, E>,
    ) -> Result<Arc<Live<C>>, E> {
        // Locked first: rules that are replaced meanwhile would not reach the new layer.
        let mut all = lock(&self.followers.0);
        let shared = build(&self.now())?;
        Ok(Live::added(Arc::new(shared), &self.followers, &mut all))
    }

    /// A layer of its own.
    pub(crate) fn of(shared: Arc<Shared<B>>, followers: &Arc<Followers>) -> Arc<Self> {
        Self::added(shared, followers, &mut lock(&followers.0))
    }

    fn added(
        shared: Arc<Shared<B>>,
        followers: &Arc<Followers>,
        all: &mut Vec<Weak<dyn Follower>>,
    ) -> Arc<Self> {
        let live = Arc::new(Self {
            current: ArcSwap::new(shared),
            followers: Arc::clone(followers),
        });
        all.retain(|follower| follower.strong_count() > 0);
        let follower: Arc<dyn Follower> = Arc::clone(&live) as _;
        all.push(Arc::downgrade(&follower));
        live
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Gcra, Rate};

    use super::*;
    use crate::{Constant, ThrottleLayer, limit};

    #[test]
    fn layers_that_were_dropped_leave_the_list_when_another_follows() {
        let layer =
            ThrottleLayer::new(limit("p", Gcra::new(Rate::per_second(1))).by(Constant)).unwrap();
        let (shared, followers) = (
            layer.current.with(Arc::clone),
            Arc::new(Followers::default()),
        );
        let _kept = Live::of(Arc::clone(&shared), &followers);
        for _ in 0..9 {
            drop(Live::of(Arc::clone(&shared), &followers));
        }
        assert_eq!(lock(&followers.0).len(), 2);
    }
}
