//! Layers whose limits are replaced while requests run: what a rule file does to them, and what it
//! asks of them.

pub(super) mod beside;
pub(crate) mod explain;
mod rebuild;

use std::sync::{Arc, Weak};

use http::request::Parts;
use throttle_core::backend::ExceptedKey;
use throttle_core::{Backend, ConfigError};

use self::rebuild::rebuild;
use crate::ThrottleLayer;
use crate::limit::explained::Explanation;
use crate::lock::lock;
use crate::throttle::{Asking, Current, Follower, Followers, KeyChange, Live, Next};

impl<B: Backend> ThrottleLayer<B> {
    /// The same layer, with limits that are replaced together with those of other followers.
    pub(crate) fn following(self, followers: &Arc<Followers>) -> Self {
        let shared = self.current.with(Arc::clone);
        Self {
            current: Current::Live(Live::of(shared, followers)),
        }
    }
}

impl Followers {
    /// Whether a layer's limits must say what happens when the store fails.
    pub(crate) fn need_on_error(&self) -> bool {
        lock(&self.0)
            .iter()
            .filter_map(Weak::upgrade)
            .any(|follower| follower.needs_on_error())
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
        let built: Vec<_> = all
            .into_iter()
            .map(|follower| follower.build(next))
            .collect::<Result<_, _>>()?;
        built.into_iter().for_each(|replace| replace());
        Ok(())
    }
}

impl<B: Backend> Follower for Live<B> {
    fn needs_on_error(&self) -> bool {
        let now = self.now();
        now.backend.can_fail() && now.options.on_error.is_none()
    }

    fn explain<'a>(&self, parts: &'a Parts) -> Asking<'a, Explanation> {
        Box::pin(explain::explain(self.current.load_full(), parts))
    }

    fn change<'a>(&self, limit: &'a str, parts: &'a Parts, change: KeyChange) -> Asking<'a, bool> {
        Box::pin(explain::change(
            self.current.load_full(),
            limit,
            parts,
            change,
        ))
    }

    fn exceptions<'a>(&self, limit: &'a str, most: usize) -> Asking<'a, Vec<ExceptedKey>> {
        let shared = self.current.load_full();
        match explain::place(&shared, limit) {
            Some(place) => shared.backend.exceptions(&shared.prepared, place, most),
            None => Box::pin(std::future::ready(Ok(Vec::new()))),
        }
    }

    fn build(self: Arc<Self>, next: &Next<'_>) -> Result<Box<dyn FnOnce()>, ConfigError> {
        let shared = Arc::new(rebuild(&self.now(), next)?);
        Ok(Box::new(move || self.current.store(shared)))
    }
}
