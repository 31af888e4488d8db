use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;

use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt, Treatment};
use throttle_core::{
    Backend, BackendError, BackendErrorKind, ConfigError, Decision, Key, Policy, PolicySet,
    Timestamp,
};

use crate::decide::set::RedisSet;
use crate::decide::{self, settle};
use crate::except;
use crate::inspect::{self, Inspection};
use crate::link::call_error::CallError;
use crate::reset;
use crate::script::server_work;
use crate::shared_backend::SharedBackend;
use crate::stats::Stats;

/// A [`Backend`](throttle_core::Backend) that keeps state in Redis, shared by many processes.
/// Clones share the connection.
///
/// ```
/// use throttle_redis::RedisBackend;
///
/// // The connection is opened in the background, or with the first decision.
/// let backend = RedisBackend::new("redis://127.0.0.1:1")?;
/// assert!(!backend.is_healthy(), "there is no connection yet");
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
///
/// # Cancel safety
///
/// The future of an operation, such as a decision, may be dropped at any point: the operation then
/// runs once or not at all, and no other operation receives its reply.
#[derive(Clone)]
pub struct RedisBackend {
    pub(crate) shared: Arc<SharedBackend>,
}

impl RedisBackend {
    /// Returns what this backend and its clones have done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.links.counters.read()
    }

    /// Returns whether there is a connection to each server and no breaker is open, so that
    /// decisions are sent to the store. A server that refuses all decisions, for example because it
    /// is a replica or full, is unhealthy after the
    /// [second](crate::RedisBuilder::breaker_threshold) of them, and healthy when it would decide
    /// again. An idle connection that has ended counts as none immediately; one that ended without
    /// a word, when the next decision finds that nothing arrives, or after about 15 seconds without
    /// traffic.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.shared.links.is_healthy()
    }

    /// Returns the value that the store holds for one key of a policy, and the decision of a peek.
    /// Nothing is charged. For a policy with tiers, pass the whole policy and not one tier: the
    /// decision is that of the first tier; the value is the stored one, whichever tier wrote it.
    ///
    /// # Errors
    ///
    /// If the store fails, or the value cannot be read.
    ///
    /// # Cancel safety
    ///
    /// The call changes nothing, so its future may be dropped at any point.
    pub async fn inspect(&self, policy: &Policy, key: &Key) -> Result<Inspection, BackendError> {
        inspect::inspect(&self.shared, policy, key)
            .await
            .map_err(BackendError::from)
    }

    fn ask(
        &self,
        prepared: &Arc<RedisSet>,
        calls: &[Call],
        as_of: Option<Timestamp>,
    ) -> Answer<Decision> {
        if let Err(error) = prepared.set().check_keys(calls) {
            return Box::pin(ready(Err(error)));
        }
        let ask = prepared.ask_as_of(&self.shared, calls, as_of);
        if let Err(error) = ask.check() {
            return refused(error);
        }
        self.on(prepared, |shared, set| async move {
            decide::decide(&shared, &set, &ask).await
        })
    }

    /// Runs `step`, or returns an error if another backend prepared the set.
    fn on<T: Send + 'static, F>(
        &self,
        prepared: &Arc<RedisSet>,
        step: impl FnOnce(Arc<SharedBackend>, Arc<RedisSet>) -> F + Send + 'static,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        if prepared.backend != self.shared.id {
            return refused("the set of limits was prepared by another RedisBackend");
        }
        let (shared, prepared) = (Arc::clone(&self.shared), Arc::clone(prepared));
        Box::pin(async { step(shared, prepared).await.map_err(BackendError::from) })
    }
}

/// Something that the caller has to mend. Nothing is sent.
fn refused<T: Send + 'static>(
    why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Answer<T> {
    let error = BackendError::new(BackendErrorKind::Protocol)
        .uncharged()
        .with_source(why);
    Box::pin(ready(Err(error)))
}

impl Backend for RedisBackend {
    type Prepared = RedisSet;
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    /// # Errors
    ///
    /// If a policy is a sliding log of more than 10,000 units: one decision would keep the server
    /// busy for too long.
    fn prepare(&self, set: PolicySet) -> Result<RedisSet, ConfigError> {
        server_work::check(&set)?;
        Ok(RedisSet::new(&self.shared, set))
    }

    fn set(prepared: &RedisSet) -> &PolicySet {
        prepared.set()
    }

    fn decide(&self, prepared: &Arc<RedisSet>, calls: &[Call]) -> Answer<Decision> {
        self.ask(prepared, calls, None)
    }

    fn now(&self, prepared: &Arc<RedisSet>, calls: &[Call]) -> Option<Timestamp> {
        if let Some(slot) = self.shared.one_slot {
            return self.shared.now(slot);
        }
        decide::now(&self.shared, &prepared.ask(&self.shared, calls))
    }

    fn decide_as_of(
        &self,
        prepared: &Arc<RedisSet>,
        calls: &[Call],
        at: Timestamp,
    ) -> Answer<Decision> {
        self.ask(prepared, calls, Some(at))
    }

    fn settle(&self, prepared: &Arc<RedisSet>, receipt: Receipt) -> Answer<()> {
        self.on(prepared, |shared, set| async move {
            settle::settle(&shared, &set, &receipt).await
        })
    }

    /// One round trip to change a key. To list exceptions, the step goes through the keys of the
    /// policy on every server, and names each key as the server does.
    ///
    /// Another process that has a [deny cache](crate::RedisBuilder::deny_cache) may refuse a key for
    /// a second after an exception would admit it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the step was run once or not at all.
    fn run(
        &self,
        prepared: &Arc<RedisSet>,
        index: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        let policy = match prepared.set().policy(index) {
            Ok(policy) => policy,
            Err(error) => return Box::pin(ready(Err(error))),
        };
        if let KeyStep::Except(_, Some(exception)) = &step {
            let is_light = match &exception.treatment {
                Treatment::Limit(limit) => server_work::check_one(policy, limit),
                _ => Ok(()),
            };
            if let Err(error) = exception.check(policy, None).and(is_light) {
                return refused(error);
            }
        }
        self.on(prepared, move |shared, set| async move {
            match step {
                KeyStep::Reset(key) => reset::reset(&shared, &set, index, &key).await,
                KeyStep::Except(key, exception) => {
                    except::except(&shared, &set, index, &key, exception.as_ref()).await
                }
                KeyStep::Strike(key, ban) => except::strike(&shared, &set, index, &key, &ban).await,
                KeyStep::Exceptions { most } => {
                    except::exceptions(&shared, set.set().policies()[index].name(), most).await
                }
            }
        })
    }

    fn reset_all(&self, prefix: &str) -> Answer<()> {
        let (shared, prefix) = (Arc::clone(&self.shared), prefix.to_owned());
        Box::pin(async move {
            reset::reset_all(&shared, &prefix)
                .await
                .map_err(BackendError::from)
        })
    }

    fn has_exceptions(&self) -> bool {
        true
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisBackend");
        shown
            .field("healthy", &self.is_healthy())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use throttle_core::{Gcra, Limiter, Rate};

    use super::*;
    use crate::link::connection::FaultKind;
    use crate::link::tests::by_hand::{ByHand, fault};

    fn prepare(backend: &RedisBackend) -> Arc<RedisSet> {
        let policy = Policy::new("p", Gcra::new(Rate::per_minute(5))).expect("a policy");
        Arc::new(
            backend
                .prepare(PolicySet::new(policy).expect("a set"))
                .expect("a set"),
        )
    }

    /// There is no server.
    fn backend() -> RedisBackend {
        let single = crate::Single::new("redis://127.0.0.1:1").expect("a URL");
        RedisBackend::builder(single)
            .deny_cache(10)
            .build()
            .expect("valid options")
    }

    #[tokio::test]
    async fn a_set_of_another_backend_is_not_decided() {
        let (one, other) = (backend(), backend());
        let (foreign, calls) = (prepare(&other), [Call::from(Key::from("ada"))]);
        let error = one
            .decide(&foreign, &calls)
            .await
            .expect_err("another backend's");
        assert_eq!(
            (error.kind(), error.is_uncharged()),
            (BackendErrorKind::Protocol, true)
        );
        let source = error.source().expect("a reason").to_string();
        assert!(
            source.contains("prepared by another RedisBackend"),
            "{source}"
        );
        assert_eq!(one.stats().failures, 0, "the store was not asked");
    }

    /// The names of its keys may be the same.
    #[tokio::test(start_paused = true)]
    async fn no_operation_on_a_set_of_another_backend_is_sent() {
        let store = ByHand::default();
        let one = RedisBackend::builder(store.clone())
            .build()
            .expect("valid options");
        store.connect(Ok(())).await;
        let (foreign, calls) = (prepare(&backend()), [Call::from(Key::from("ada"))]);
        let memory =
            Limiter::in_memory(RedisBackend::set(&foreign).policies()[0].clone()).expect("a set");
        let receipt = Receipt::of(&memory.decide(&calls).await.expect("a decision"), &calls)
            .expect("a charge")
            .actual(0);
        let errors = [
            one.run(&foreign, 0, KeyStep::Reset(Key::from("ada")))
                .await
                .map(drop)
                .expect_err("another backend's"),
            tokio::spawn(one.settle(&foreign, receipt))
                .await
                .expect("no panic")
                .expect_err("another backend's"),
            one.decide_as_of(&foreign, &calls, Timestamp::EPOCH)
                .await
                .expect_err("another backend's"),
        ];
        for error in errors {
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (BackendErrorKind::Protocol, true)
            );
            let source = error.source().expect("a reason").to_string();
            assert!(
                source.contains("prepared by another RedisBackend"),
                "{source}"
            );
        }
        assert!(store.is_idle().await);
    }

    /// One of the servers fails.
    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_not_healthy_while_calls_to_a_part_of_it_are_suspended() {
        let store = ByHand::cluster();
        let backend = RedisBackend::builder(store.clone())
            .per_key_slot()
            .breaker_threshold(1)
            .build()
            .expect("valid options");
        store.connect(Ok(())).await;
        assert!(backend.is_healthy());
        let deciding =
            tokio::spawn(backend.decide(&prepare(&backend), &[Call::from(Key::from("ada"))]));
        store
            .next()
            .await
            .answer(Err(fault(FaultKind::Refused)))
            .await;
        assert!(deciding.await.expect("no panic").is_err() && !backend.is_healthy());
        assert!(
            format!("{backend:?}").starts_with("RedisBackend { healthy: false, "),
            "{backend:?}"
        );
    }

    #[tokio::test]
    async fn a_request_that_no_policy_applies_to_needs_no_store() {
        let backend = backend();
        let decision = backend
            .decide(&prepare(&backend), &[Call::SKIP])
            .await
            .expect("nothing to ask");
        assert_eq!(decision, Decision::not_limited(1));
        assert_eq!(
            backend
                .decide(&prepare(&backend), &[])
                .await
                .expect("nothing to ask"),
            Decision::not_limited(1)
        );
        assert_eq!(backend.stats().calls, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_shows_its_health_and_its_counters() {
        let store = ByHand::default();
        let backend = RedisBackend::builder(store.clone())
            .build()
            .expect("valid options");
        let shown = format!("{backend:?}");
        assert!(
            shown.starts_with("RedisBackend { healthy: false, stats: Stats { decisions: 0, "),
            "{shown}"
        );
        store.connect(Ok(())).await;
        let shown = format!("{:?}", backend.clone());
        assert!(
            shown.starts_with("RedisBackend { healthy: true, stats: Stats { decisions: 0, "),
            "{shown}"
        );
        assert!(
            shown.contains(" connections: 1,") && shown.ends_with(" }, .. }"),
            "{shown}"
        );
    }

    /// Without a clock of its own, a backend knows the time by the replies of the server.
    #[tokio::test(start_paused = true)]
    async fn the_present_instant_is_that_of_the_clock_that_decides() {
        let calls = [Call::from(Key::from("ada"))];
        let clock = throttle_core::ManualClock::new(Timestamp::from_micros(70));
        let single = crate::Single::new("redis://127.0.0.1:1").expect("a URL");
        let own = RedisBackend::builder(single)
            .clock(clock.clone())
            .build()
            .expect("valid options");
        assert_eq!(
            own.now(&prepare(&own), &calls),
            Some(Timestamp::from_micros(70))
        );
        clock.set(Timestamp::from_micros(90));
        assert_eq!(
            own.now(&prepare(&own), &calls),
            Some(Timestamp::from_micros(90))
        );
        let store = ByHand::default();
        let servers = RedisBackend::builder(store.clone())
            .build()
            .expect("valid options");
        store.connect(Ok(())).await;
        let set = prepare(&servers);
        assert_eq!(servers.now(&set, &calls), None);
        let deciding = tokio::spawn(servers.decide(&set, &calls));
        store.next().await.admit().await;
        assert!(deciding.await.expect("no panic").is_ok());
        let now = servers.now(&set, &calls).expect("a reply told the time");
        assert!(
            (now.as_micros() - 1_790_000_000_000_000).abs() < 1_000,
            "{now}"
        );
    }
}
