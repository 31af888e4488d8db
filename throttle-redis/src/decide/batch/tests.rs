mod starting;
mod together;

use throttle_core::backend::Call;
use throttle_core::{Backend, Gcra, Key, Policy, PolicySet, Rate};
use tokio::task::JoinHandle;
use tokio::time::advance;

use super::*;
use crate::RedisBackend;
use crate::decide::set::RedisSet;
use crate::link::tests::by_hand::{ByHand, turns};

const MS: Duration = Duration::from_millis(1);
/// Later than any of these decisions.
const HOUR: Duration = Duration::from_secs(3_600);

struct Fixture {
    store: ByHand,
    backend: RedisBackend,
    set: Arc<RedisSet>,
}

type Begun = JoinHandle<Result<Part, CallError>>;

fn limit(count: u64) -> PolicySet {
    PolicySet::new(Policy::new("p", Gcra::new(Rate::per_minute(count))).expect("a policy"))
        .expect("a set")
}

/// A limit whose decisions cost the server a fifth of a microsecond for each entry.
fn logs(entries: u64) -> PolicySet {
    let log = throttle_core::SlidingLog::new(Rate::per_day(entries));
    PolicySet::new(Policy::new("p", log).expect("a policy")).expect("a set")
}

impl Fixture {
    fn unconnected() -> Self {
        Self::of(limit(9), 1_024)
    }

    /// A set whose queue has room for so many decisions.
    fn of(set: PolicySet, queue: usize) -> Self {
        let store = ByHand::default();
        let builder = RedisBackend::builder(store.clone())
            .readable_keys()
            .deadline(Duration::from_secs(1));
        let backend = builder
            .queue(queue)
            .breaker_threshold(1)
            .build()
            .expect("valid options");
        let set = Arc::new(backend.prepare(set).expect("a set"));
        Self {
            store,
            backend,
            set,
        }
    }

    async fn connected() -> Self {
        Self::unconnected().connect().await
    }

    async fn connect(self) -> Self {
        self.store.connect(Ok(())).await;
        self
    }

    fn waiting(&self) -> parking_lot::MutexGuard<'_, BatcherState> {
        self.set.batcher.0.lock()
    }

    /// As many calls are under way as allowed, until `until`.
    fn occupy(&self, until: Instant) {
        let mut waiting = self.waiting();
        while waiting.in_flight.len() < CALLS_IN_FLIGHT {
            waiting.start(1, until);
        }
    }

    /// All but one of the calls under way end, so that all queued decisions start together.
    fn free(&self) {
        self.waiting().in_flight.truncate(1);
        let batcher = &self.set.batcher.0;
        spawn_start(
            &self.backend.shared,
            batcher,
            batcher.lock(),
            TaskSpawner::EndedCall,
        );
    }

    fn ask(&self, key: &str) -> Arc<Ask> {
        self.set
            .ask(&self.backend.shared, &[Call::from(Key::from(key))])
    }

    async fn begin(&self, key: &str, time: Duration) -> Begun {
        let (shared, set, ask) = (
            Arc::clone(&self.backend.shared),
            Arc::clone(&self.set),
            self.ask(key),
        );
        let until = Instant::now() + time;
        let begun = tokio::spawn(async move { set.batcher.ask(&shared, &ask, until).await });
        turns().await;
        begun
    }
}

fn name(key: &str) -> String {
    format!("throttle{{all}}p:t{key}")
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_a_call_has_taken_may_be_charged() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    for its_runtime_ends in [false, true] {
        let begun = fixture.begin("ada", 100 * MS).await;
        let job = fixture.waiting().queue.pop_front().expect("it is queued");
        assert!(job.claim.take(), "the call takes it");
        let _standing_still = Some(job).filter(|_| !its_runtime_ends);
        assert!(
            matches!(begun.await.expect("no panic"), Err(CallError::Late)),
            "stopped: {its_runtime_ends}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_of_a_runtime_that_stands_still_are_sent_by_the_next_one() {
    let fixture = Fixture::connected().await;
    let still = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    fixture.occupy(Instant::now());
    fixture.waiting().runtime = Some(still.handle().clone());
    let first = fixture.begin("first", 500 * MS).await;
    assert!(
        fixture.store.is_idle().await,
        "the calls of the other runtime are not overdue yet"
    );
    advance(GRACE).await;
    let second = fixture.begin("second", 500 * MS).await;
    for key in ["first", "second"] {
        let sent = fixture.store.next().await;
        assert_eq!(sent.keys(), [name(key)]);
        sent.admit().await;
    }
    assert!(first.await.expect("no panic").is_ok() && second.await.expect("no panic").is_ok());
    still.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_the_connection_as_long_as_one_of_its_decisions() {
    let fixture = Fixture::unconnected();
    fixture.occupy(Instant::now() + HOUR);
    let began = Instant::now();
    let soon = fixture.begin("soon", 100 * MS).await;
    let later = fixture.begin("later", 300 * MS).await;
    fixture.free();
    turns().await;
    advance(100 * MS).await;
    assert!(matches!(
        soon.await.expect("no panic"),
        Err(CallError::Expired)
    ));
    assert_eq!(began.elapsed(), 100 * MS + GRACE);
    fixture.store.connect(Ok(())).await;
    let sent = fixture.store.next().await;
    assert_eq!(sent.keys(), [name("later")]);
    sent.admit().await;
    assert!(later.await.expect("no panic").is_ok());
}

/// Spawns decisions that ask one after the other, with nothing else in between.
fn begin_together(fixture: &Fixture, keys: &[&str], time: Duration) -> Vec<Begun> {
    let until = Instant::now() + time;
    let begin = |key: &&str| {
        let (shared, set, ask) = (
            Arc::clone(&fixture.backend.shared),
            Arc::clone(&fixture.set),
            fixture.ask(key),
        );
        tokio::spawn(async move { set.batcher.ask(&shared, &ask, until).await })
    };
    keys.iter().map(begin).collect()
}

#[tokio::test(start_paused = true)]
async fn call_that_a_runtime_never_starts_is_left_to_the_next_runtime() {
    let fixture = Fixture::connected().await;
    fixture.waiting().start(6, Instant::now() + HOUR);
    // As if another runtime were about to start a call, and stood still.
    fixture.waiting().starting = Some(Instant::now() + GRACE);
    let waiting = begin_together(&fixture, &["a", "b", "c"], 500 * MS);
    assert!(
        fixture.store.is_idle().await,
        "the other runtime may still start the call"
    );
    advance(GRACE).await;
    let last = fixture.begin("d", 500 * MS).await;
    let sent = fixture.store.next().await;
    assert_eq!(sent.keys(), ["a", "b", "c", "d"].map(name));
    sent.admit().await;
    for begun in waiting.into_iter().chain([last]) {
        assert!(begun.await.expect("no panic").is_ok());
    }
}

/// The caller leaves a call that is under way a little time to say more.
#[tokio::test(start_paused = true)]
async fn decision_that_no_call_takes_fails_shortly_after_its_deadline() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let began = Instant::now();
    let begun = fixture.begin("ada", 100 * MS).await;
    assert!(matches!(
        begun.await.expect("no panic"),
        Err(CallError::Expired)
    ));
    assert!(
        (105 * MS..=106 * MS).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
}
