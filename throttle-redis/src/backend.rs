use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use throttle_core::backend::{Call, Receipt, ReceiptItem};
use throttle_core::{
    Backend, BackendError, BackendErrorKind, ConfigError, Decision, Key, Policy, PolicySet, Timestamp,
};

use crate::ask::Ask;
use crate::builder::RedisBuilder;
use crate::connection::{Connector, Single};
use crate::line::Trouble;
use crate::set::RedisSet;
use crate::shared::Shared;
use crate::{Inspection, Stats, decide, inspect, reset, settle, work};

/// Keeps state in Redis, where many processes share it. Clones share the connection.
#[derive(Clone)]
pub struct RedisBackend {
    pub(crate) shared: Arc<Shared>,
}

impl RedisBackend {
    /// One server, by one connection, with default options. See [`Single::new`] for the URL.
    ///
    /// Nothing is waited for: inside a tokio runtime the connection is opened in the background, outside of one with the
    /// first decision.
    ///
    /// # Errors
    ///
    /// If the URL cannot be read.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        Self::builder(Single::new(url)?).build()
    }

    /// Options of a backend, on any connection.
    pub fn builder(connector: impl Connector) -> RedisBuilder {
        RedisBuilder::new(Box::new(connector))
    }

    /// What this backend and its clones have done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.line.counters.read()
    }

    /// Whether there is a connection, and the store is asked: it has not failed so often in a row that it is left alone, or
    /// has given a sign of life since.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.shared.line.is_healthy()
    }

    /// What the store holds of one key of a policy, and where the key stands. Nothing is charged. Of a policy with tiers, ask
    /// for all of it and not for one tier: where the key stands is told as in the first, and the value is the one that
    /// whichever tier has written.
    ///
    /// # Errors
    ///
    /// If the store fails, or the value was written under other parameters than the policy's and cannot be read.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing, so it may be dropped at any point.
    pub async fn inspect(&self, policy: &Policy, key: &Key) -> Result<Inspection, BackendError> {
        inspect::inspect(&self.shared, policy, key).await.map_err(BackendError::from)
    }

    /// Runs `step` unless another backend prepared the set.
    fn on<T: Send + 'static, F>(
        &self,
        prepared: &Arc<RedisSet>,
        step: impl FnOnce(Arc<Shared>, Arc<RedisSet>) -> F,
    ) -> RedisFuture<T>
    where
        F: Future<Output = Result<T, Trouble>> + Send + 'static,
    {
        if prepared.backend != self.shared.id {
            let error = BackendError::new(BackendErrorKind::Protocol).uncharged();
            let error = error.with_source("the set of limits was prepared by another RedisBackend");
            return RedisFuture(Box::pin(std::future::ready(Err(error))));
        }
        let stepping = step(Arc::clone(&self.shared), Arc::clone(prepared));
        RedisFuture(Box::pin(async { stepping.await.map_err(BackendError::from) }))
    }
}

impl Backend for RedisBackend {
    type Prepared = RedisSet;
    type Decide = RedisFuture<Decision>;
    type Done = RedisFuture<()>;

    /// # Errors
    ///
    /// If a policy is a sliding log of more than 10,000 units: one decision about it would keep the server busy for too long.
    /// If a policy's name is in use on this backend with other parameters, which it does not
    /// [replace](Policy::replace_existing).
    fn prepare(&self, set: PolicySet) -> Result<RedisSet, ConfigError> {
        work::check(&set)?;
        RedisSet::registered(&self.shared, set)
    }

    fn set(prepared: &RedisSet) -> &PolicySet {
        &prepared.set
    }

    fn in_force(&self, prepared: &Arc<RedisSet>) -> Option<Arc<PolicySet>> {
        prepared.replaced()
    }

    fn decide(&self, prepared: &Arc<RedisSet>, calls: &[Call]) -> RedisFuture<Decision> {
        let set = prepared.for_tiers(&self.shared, |place| calls.get(place).map_or(0, Call::tier));
        let ask = set.ask(&self.shared, calls);
        self.on(&set, |shared, set| async move { decide::decide(&shared, &set, ask).await })
    }

    fn decide_at_once(&self, prepared: &Arc<RedisSet>, calls: &[Call]) -> Option<Decision> {
        if self.shared.asks_always() || prepared.backend != self.shared.id {
            return None;
        }
        let set = prepared.for_tiers(&self.shared, |place| calls.get(place).map_or(0, Call::tier));
        self.shared.at_once(&set.ask(&self.shared, calls))
    }

    fn now(&self, prepared: &Arc<RedisSet>, calls: &[Call]) -> Option<Timestamp> {
        if !self.shared.line.is_cluster() {
            return self.shared.now(0);
        }
        let ask = prepared.ask(&self.shared, calls);
        // Servers have clocks of their own.
        if self.shared.is_spread(&ask) { None } else { self.shared.now(ask.slot) }
    }

    fn decide_as_of(&self, prepared: &Arc<RedisSet>, calls: &[Call], at: Timestamp) -> RedisFuture<Decision> {
        let set = prepared.for_tiers(&self.shared, |place| calls.get(place).map_or(0, Call::tier));
        let ask = Ask { as_of: Some(at), ..set.ask(&self.shared, calls) };
        self.on(&set, |shared, set| async move { decide::decide(&shared, &set, ask).await })
    }

    fn settle(&self, prepared: &Arc<RedisSet>, receipt: Receipt) -> RedisFuture<()> {
        let tier = |place| receipt.items().iter().find(|item| item.policy() == place).map_or(0, ReceiptItem::tier);
        let set = prepared.for_tiers(&self.shared, tier);
        self.on(&set, |shared, set| async move { settle::settle(&shared, &set, &receipt).await })
    }

    fn reset(&self, prepared: &Arc<RedisSet>, policy: usize, key: &Key) -> RedisFuture<()> {
        let key = key.clone();
        self.on(prepared, move |shared, set| async move { reset::reset(&shared, &set, policy, &key).await })
    }

    fn reset_all(&self, prefix: &str) -> RedisFuture<()> {
        let (shared, prefix) = (Arc::clone(&self.shared), prefix.to_owned());
        RedisFuture(Box::pin(async move { reset::reset_all(&shared, &prefix).await.map_err(BackendError::from) }))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisBackend");
        shown.field("healthy", &self.is_healthy()).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// A step of a [`RedisBackend`] that is under way.
///
/// # Cancel safety
///
/// Dropped at any point, the step was done once or not at all, and no other step gets its answer.
#[must_use = "futures do nothing unless polled"]
pub struct RedisFuture<T>(Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send>>);

impl<T> Future for RedisFuture<T> {
    type Output = Result<T, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T> fmt::Debug for RedisFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisFuture")
    }
}
