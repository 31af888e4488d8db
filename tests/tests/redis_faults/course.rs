//! A load that runs throughout a test, and the important instants in it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use throttle_redis::RedisBuilder;
use throttle_test_servers::Proxy;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::app::{App, Mode, Path};
use crate::report::Report;

/// 200 requests a second, in each mode.
const EVERY: Duration = Duration::from_millis(5);

/// Keys that requests use in turn.
const KEYS: u64 = 12;

pub(crate) struct Course {
    pub(crate) apps: Vec<App>,
    running: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    began: Option<Instant>,
    ended: Option<Instant>,
    opened: Arc<Mutex<Vec<Option<Instant>>>>,
}

impl Course {
    /// A load that runs before a fault, throughout it, and for some time after the store is back.
    pub(crate) async fn through(
        backend: impl Fn() -> RedisBuilder,
        fault: impl AsyncFnOnce(&Self),
        after: Duration,
    ) -> Report {
        Self::start(backend).await.with(fault, after).await
    }

    /// A load on a store that is changed for some time and then changed back.
    pub(crate) async fn changed(
        backend: impl Fn() -> RedisBuilder,
        lasts: Duration,
        change: impl Fn(),
        back: impl Fn(),
    ) -> Report {
        let fault = async |course: &Self| {
            change();
            course.run_for(lasts).await;
            back();
        };
        Self::through(backend, fault, Duration::from_millis(1200)).await
    }

    /// The rest of a course that has started.
    pub(crate) async fn with(mut self, fault: impl AsyncFnOnce(&Self), after: Duration) -> Report {
        self.began = Some(Instant::now());
        fault(&self).await;
        let ended = Instant::now();
        self.ended = Some(ended);
        // On a busy machine the first decision may come late. `check_return` says how late.
        self.until_decided_since(ended, Duration::from_secs(30))
            .await;
        self.run_for(after).await;
        self.finish().await
    }

    /// Starts the load and lets it run for a moment, to measure a healthy store first.
    pub(crate) async fn start(backend: impl Fn() -> RedisBuilder) -> Self {
        let course = Self::start_at_once(backend);
        let since = Instant::now();
        course
            .until_decided_since(since, Duration::from_secs(30))
            .await;
        sleep(Duration::from_millis(700)).await;
        course
    }

    /// Starts the load, although the store may not be running.
    pub(crate) fn start_at_once(backend: impl Fn() -> RedisBuilder) -> Self {
        let apps: Vec<App> = Mode::ALL
            .into_iter()
            .map(|mode| App::new(mode, backend()))
            .collect();
        let running = Arc::new(AtomicBool::new(true));
        let opened = Arc::new(Mutex::new(vec![None; apps.len()]));
        let mut tasks: Vec<_> = apps
            .iter()
            .map(|app| tokio::spawn(load(app.clone(), Arc::clone(&running))))
            .collect();
        tasks.push(tokio::spawn(watch(
            apps.clone(),
            Arc::clone(&opened),
            Arc::clone(&running),
        )));
        Self {
            apps,
            running,
            tasks,
            began: None,
            ended: None,
            opened,
        }
    }

    pub(crate) async fn run_for(&self, duration: Duration) {
        sleep(duration).await;
    }

    /// Waits until the store has decided in every mode.
    pub(crate) async fn until_decided_since(&self, since: Instant, limit: Duration) {
        let decided = || self.apps.iter().all(|app| app.has_decided_since(since));
        until(limit, "decisions by the store", || async { decided() }).await;
    }

    /// Decisions so far of which it is unknown whether they were charged.
    pub(crate) fn unknown(&self) -> u64 {
        self.apps
            .iter()
            .map(|app| app.backend.stats().unknown)
            .sum()
    }

    /// Loses answers of decisions at this proxy, one after the other. Waits each time until one is
    /// lost, because the proxy may carry other answers too, and until the store decides again.
    pub(crate) async fn lose_answers(&self, proxy: &Proxy, times: u32) {
        for _ in 0..times {
            let before = self.unknown();
            until(
                Duration::from_secs(30),
                "an answer that is lost",
                || async {
                    if proxy.cuts_left() == 0 && self.unknown() == before {
                        proxy.cut_replies(1);
                    }
                    self.unknown() > before
                },
            )
            .await;
            proxy.cut_replies(0);
            self.until_decided_since(Instant::now(), Duration::from_secs(30))
                .await;
        }
    }

    /// Stops the load, waits for the requests under way, and returns the record.
    async fn finish(self) -> Report {
        self.running.store(false, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("no request panics");
        }
        // Requests that were given up may still be on their way to the server.
        sleep(Duration::from_millis(200)).await;
        let opened = self.opened.lock().clone();
        Report::new(self.apps, self.began, self.ended, opened)
    }
}

/// Calls `ask` until it returns true.
pub(crate) async fn until<F: Future<Output = bool>>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
) {
    let start = Instant::now();
    while !ask().await {
        assert!(
            start.elapsed() < limit,
            "waited {limit:?} in vain for {what}"
        );
        sleep(Duration::from_millis(2)).await;
    }
}

async fn load(app: App, running: Arc<AtomicBool>) {
    let (mut ticks, mut sending, mut number) = (interval(EVERY), JoinSet::new(), 0_u64);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while running.load(Ordering::SeqCst) {
        ticks.tick().await;
        let path = match number % 10 {
            3 | 7 => Path::Both,
            5 => Path::Apart,
            8 => Path::Tiny,
            _ => Path::Wide,
        };
        let keys = if path == Path::Tiny { 2 } else { KEYS };
        let (app, key) = (app.clone(), format!("key-{:02}", number / 10 % keys));
        sending.spawn(async move { app.send(path, key).await });
        number += 1;
    }
    while let Some(sent) = sending.join_next().await {
        sent.expect("no request panics");
    }
}

/// When each backend's breaker first opened during the fault. It is polled, because there is no
/// notification.
async fn watch(apps: Vec<App>, opened: Arc<Mutex<Vec<Option<Instant>>>>, running: Arc<AtomicBool>) {
    while running.load(Ordering::SeqCst) {
        for (app, opened) in apps.iter().zip(opened.lock().iter_mut()) {
            if opened.is_none() && app.backend.stats().breaker_openings > 0 {
                *opened = Some(Instant::now());
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}
