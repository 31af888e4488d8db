//! Layers whose limits are replaced while requests run.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};

use arc_swap::{ArcSwap, Guard};
use http::request::Parts;
use throttle_core::{Backend, BackendError, ConfigError};

use super::explain;
use super::explained::Explained;
use super::next::Next;
use super::rebuild::rebuild;
use super::shared::Shared;
use crate::lock::lock;

/// What the clones of a layer decide by, until it is replaced.
pub(crate) struct Live<B: Backend> {
    current: ArcSwap<Shared<B>>,
    followers: Arc<Followers>,
}

/// The layers that follow the same rules: one for each backend and each set of options, however often it is cloned.
#[derive(Default)]
pub(crate) struct Followers(Mutex<Vec<Weak<dyn Follower>>>);

pub(crate) trait Follower: Send + Sync {
    /// Whether each limit must say what happens when the store fails.
    fn needs_on_error(&self) -> bool;

    /// What would happen to a request.
    fn explain<'a>(&self, parts: &'a Parts) -> Asking<'a, Explained>;

    /// Makes the key of a request unused in a limit.
    fn reset<'a>(&self, limit: &'a str, parts: &'a Parts) -> Asking<'a, bool>;

    /// Builds what comes next. It is used once the result is called.
    ///
    /// # Errors
    ///
    /// If the limits cannot be enforced on this layer's backend.
    fn build(self: Arc<Self>, next: &Next<'_>) -> Result<Box<dyn FnOnce()>, ConfigError>;

    /// Puts the parameters that are in use in force again, after another follower could not be built.
    fn restore(&self);
}

/// A question to a backend.
pub(crate) type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

impl<B: Backend> Live<B> {
    #[inline]
    pub(super) fn now(&self) -> Guard<Arc<Shared<B>>> {
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
    pub(super) fn of(shared: Arc<Shared<B>>, followers: &Arc<Followers>) -> Arc<Self> {
        Self::added(shared, followers, &mut lock(&followers.0))
    }

    fn added(shared: Arc<Shared<B>>, followers: &Arc<Followers>, all: &mut Vec<Weak<dyn Follower>>) -> Arc<Self> {
        let live = Arc::new(Self { current: ArcSwap::new(shared), followers: Arc::clone(followers) });
        all.retain(|follower| follower.strong_count() > 0);
        let follower: Arc<dyn Follower> = Arc::clone(&live) as _;
        all.push(Arc::downgrade(&follower));
        live
    }
}

impl Followers {
    /// Whether a layer's limits must say what happens when the store fails.
    pub(crate) fn need_on_error(&self) -> bool {
        lock(&self.0).iter().filter_map(Weak::upgrade).any(|follower| follower.needs_on_error())
    }

    /// The layer that was made last, of those that are left.
    pub(crate) fn latest(&self) -> Option<Arc<dyn Follower>> {
        lock(&self.0).iter().rev().find_map(Weak::upgrade)
    }

    /// Replaces the limits of all layers, or of none.
    ///
    /// # Errors
    ///
    /// If the limits cannot be enforced on the backend of one of the layers.
    pub(crate) fn replace(&self, next: &Next<'_>) -> Result<(), ConfigError> {
        let mut followers = lock(&self.0);
        followers.retain(|follower| follower.strong_count() > 0);
        let all: Vec<_> = followers.iter().filter_map(Weak::upgrade).collect();
        let built: Result<Vec<_>, _> = all.iter().map(|follower| Arc::clone(follower).build(next)).collect();
        match built {
            Ok(built) => {
                built.into_iter().for_each(|replace| replace());
                Ok(())
            }
            Err(error) => {
                all.iter().for_each(|follower| follower.restore());
                Err(error)
            }
        }
    }
}

impl<B: Backend> Follower for Live<B> {
    fn needs_on_error(&self) -> bool {
        let now = self.now();
        now.backend.can_fail() && now.options.on_error.is_none()
    }

    fn explain<'a>(&self, parts: &'a Parts) -> Asking<'a, Explained> {
        Box::pin(explain::explain(self.current.load_full(), parts))
    }

    fn reset<'a>(&self, limit: &'a str, parts: &'a Parts) -> Asking<'a, bool> {
        Box::pin(explain::reset(self.current.load_full(), limit, parts))
    }

    fn build(self: Arc<Self>, next: &Next<'_>) -> Result<Box<dyn FnOnce()>, ConfigError> {
        let shared = Arc::new(rebuild(&self.now(), next)?);
        Ok(Box::new(move || self.current.store(shared)))
    }

    fn restore(&self) {
        let shared = self.now();
        // It is in use, so it was accepted before.
        let _ = shared.backend.prepare(B::set(&shared.prepared).clone().replace_existing());
    }
}
