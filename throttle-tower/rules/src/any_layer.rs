//! The layer of a handle, whatever its backend.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use throttle_core::backend::{ExceptedKey, Exception};
use throttle_core::{Backend, BackendError, ConfigError, MemoryBackend};

use super::Rules;
use super::explanation::Explanation;
use super::peek;
use throttle_tower::{ThrottleBuilder, ThrottleLayer};

pub(super) trait AnyLayer: Send + Sync {
    /// What would happen to a request, by the rules in force.
    fn explain<'a>(&'a self, rules: &'a Rules, parts: &'a Parts) -> Answer<'a, Explanation>;

    /// Changes the key of a request in a limit.
    fn change<'a>(
        &'a self,
        limit: &'a str,
        parts: &'a Parts,
        change: KeyChange,
    ) -> Answer<'a, bool>;

    /// The keys of a limit with an exception, at most so many.
    fn exceptions<'a>(&'a self, limit: &'a str, most: usize) -> Answer<'a, Vec<ExceptedKey>>;

    /// # Errors
    ///
    /// If the limits cannot be enforced on the layer's backend.
    fn replace(&self, rules: &Rules) -> Result<(), ConfigError>;
}

/// What becomes of a key.
pub(super) enum KeyChange {
    /// It is unused.
    Reset,
    /// It has an exception, or none any more.
    Except(Option<Exception>),
    /// What it had left is used up.
    Drain,
}

/// An answer of a backend.
pub(super) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

/// Finds the layer of a handle, as long as it, a clone or a service is left.
pub(super) type FindLayer = dyn Fn() -> Option<Box<dyn AnyLayer>> + Send + Sync;

/// Finds `layer` without keeping it or its backend. It was built of what the `program` sets.
pub(super) fn find_layer<B: Backend>(
    layer: &ThrottleLayer<B>,
    program: ThrottleBuilder<B>,
) -> Box<FindLayer> {
    let kept = layer.downgrade();
    let program = Arc::new(program.backend(MemoryBackend::new()));
    Box::new(move || {
        Some(Box::new(RuledLayer {
            layer: kept()?,
            program: Arc::clone(&program),
        }))
    })
}

struct RuledLayer<B: Backend> {
    layer: ThrottleLayer<B>,
    /// What the program sets, on no backend.
    program: Arc<ThrottleBuilder>,
}

impl<B: Backend> AnyLayer for RuledLayer<B> {
    fn explain<'a>(&'a self, rules: &'a Rules, parts: &'a Parts) -> Answer<'a, Explanation> {
        Box::pin(peek::explain(&self.layer, &self.program, rules, parts))
    }

    fn change<'a>(
        &'a self,
        limit: &'a str,
        parts: &'a Parts,
        change: KeyChange,
    ) -> Answer<'a, bool> {
        let layer = &self.layer;
        Box::pin(async move {
            let Some(call) = layer.call_of(limit, parts).await else {
                return Ok(false);
            };
            let Some(key) = call.key() else {
                return Ok(false);
            };
            match change {
                KeyChange::Reset => layer.reset(limit, key).await,
                KeyChange::Except(exception) => layer.except(limit, key, exception).await,
                KeyChange::Drain => layer.drain(limit, &call).await,
            }
        })
    }

    fn exceptions<'a>(&'a self, limit: &'a str, most: usize) -> Answer<'a, Vec<ExceptedKey>> {
        Box::pin(self.layer.exceptions(limit, most))
    }

    fn replace(&self, rules: &Rules) -> Result<(), ConfigError> {
        let program = ThrottleBuilder::clone(&self.program);
        let next = program.or(rules.document.builder()).limits(rules.tree());
        self.layer.replace_with(next.backend(self.layer.backend()))
    }
}
