use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use throttle_tower::throttle_core::backend::{Call, KeyStep};
use throttle_tower::throttle_core::conformance::Harness;
use throttle_tower::throttle_core::{
    Backend, FixedWindow, Key, ManualClock, Policy, PolicySet, Timestamp,
};
use tower::ServiceExt;

use super::*;
use crate::store::CLOCKS_APART;

const SECRET: &[u8; 16] = b"sixteen bytes of";

/// A database in memory, for the conformance kit.
struct InMemory {
    store: Sqlite<ManualClock>,
    clock: ManualClock,
    runtime: tokio::runtime::Runtime,
}

impl Harness for InMemory {
    type Backend = Sqlite<ManualClock>;

    fn start() -> Self {
        let clock = ManualClock::default();
        let store = Sqlite::open(":memory:", SECRET, clock.clone()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build();
        Self {
            store,
            clock,
            runtime: runtime.unwrap(),
        }
    }

    fn backend(&self) -> Sqlite<ManualClock> {
        self.store.clone()
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }

    fn forget(&self, now: Timestamp) {
        // The kit's clock does not step back after that, so nothing is kept for other clocks.
        self.clock.set(now + CLOCKS_APART);
        self.runtime.block_on(self.store.forget()).unwrap();
        self.clock.set(now);
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

throttle_tower::throttle_core::conformance_tests!(InMemory);

/// A file of its own for a test.
struct File(String);

impl File {
    fn new() -> Self {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("limits-{}-{number}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(name);
        Self(path.to_str().unwrap().to_owned())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0));
        }
    }
}

fn daily(units: u64) -> PolicySet {
    PolicySet::new(Policy::new("daily", FixedWindow::new(Rate::per_day(units))).unwrap()).unwrap()
}

fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let peer = SocketAddr::from(([192, 0, 2, 1], 40_000));
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

/// Two connections to one file are as two processes.
#[tokio::test]
async fn processes_share_one_budget_and_the_file_outlives_them() {
    let file = File::new();
    let open = || Sqlite::open(&file.0, SECRET, SystemClock::new()).unwrap();
    let apps = [app(open()).unwrap(), app(open()).unwrap()];
    let mut admitted = 0;
    for turn in 0..5 {
        let response = apps[turn % 2].clone().oneshot(request()).await.unwrap();
        assert!(response.headers().contains_key("ratelimit"));
        admitted += usize::from(response.status() == StatusCode::OK);
    }
    assert_eq!(admitted, 5);
    drop(apps);
    let refused = app(open()).unwrap().oneshot(request()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// Fifty tasks on two connections race for twenty units.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_processes_that_race_admit_exactly_what_is_left() {
    let file = File::new();
    let open = || Sqlite::open(&file.0, SECRET, ManualClock::default()).unwrap();
    let stores = [open(), open()];
    let set = Arc::new(daily(20));
    let races = (0..50).map(|task| {
        let (store, set) = (stores[task % 2].clone(), Arc::clone(&set));
        tokio::spawn(async move { store.decide(&set, &[Call::from(Key::from("ada"))]).await })
    });
    let mut admitted = 0;
    for race in races.collect::<Vec<_>>() {
        admitted += usize::from(race.await.unwrap().unwrap().is_admitted());
    }
    assert_eq!(admitted, 20);
}

#[tokio::test]
async fn row_is_deleted_when_no_clock_needs_it() {
    let clock = ManualClock::default();
    let store = Sqlite::open(":memory:", SECRET, clock.clone()).unwrap();
    let set = Arc::new(daily(9));
    let decide = || store.decide(&set, &[Call::from(Key::from("ada"))]);
    assert_eq!(decide().await.unwrap().remaining(), 8);
    let day = 24 * 3_600_000_000;
    let kept_until = day + 600_000_000;
    for (now, deleted) in [
        (day, 0),
        (kept_until - 1, 0),
        (kept_until, 1),
        (kept_until, 0),
    ] {
        clock.set(Timestamp::from_micros(now));
        assert_eq!(store.forget().await.unwrap(), deleted, "at {now}");
    }
    assert_eq!(decide().await.unwrap().remaining(), 8);
}

#[tokio::test]
async fn file_holds_no_key_of_a_client() {
    let file = File::new();
    let store = Sqlite::open(&file.0, SECRET, ManualClock::default()).unwrap();
    let key = "a token that is a secret of the client";
    let set = Arc::new(daily(9));
    store
        .decide(&set, &[Call::from(Key::from(key))])
        .await
        .unwrap();
    let mut bytes = std::fs::read(&file.0).unwrap();
    bytes.extend(std::fs::read(format!("{}-wal", file.0)).unwrap());
    let holds = |text: &str| {
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    assert!(holds("daily") && !holds(key));
}

#[tokio::test]
async fn index_without_a_policy_and_missing_steps_are_errors() {
    let store = Sqlite::open(":memory:", SECRET, ManualClock::default()).unwrap();
    let set = Arc::new(daily(9));
    let ada = Key::from("ada");
    for (index, step, why) in [
        (
            7,
            KeyStep::Reset(ada.clone()),
            "policy is 7: an index must be below 1",
        ),
        (
            0,
            KeyStep::Except(ada, None),
            "this backend has no exceptions",
        ),
    ] {
        let error = store.run(&set, index, step).await.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with(why) && error.is_uncharged(), "{source}");
    }
}
