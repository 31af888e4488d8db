//! Refunds, settlements and running charges at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use http::{Request, StatusCode};
use throttle_core::PolicySet;
use throttle_core::backend::Call;
use throttle_core::{Limiter, Policy};
use throttle_tower::{
    FixedWindow, Header, KeyExtractor, Limit, OnError, Rate, Usage, all, limit, plans,
};
use tokio::sync::Barrier;

use crate::site::{Site, estimate, number};
use crate::store::{Store, budget};

const TASKS: u64 = 64;
const UNITS: u64 = 600;
const COST: u64 = 10;

/// The least that the store must hold: the charges of running requests, and the final costs of the
/// others.
#[derive(Clone, Default)]
struct Known {
    tokens: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

/// Each request ends in one of all possible ways.
async fn work(State(known): State<Known>, usage: Usage, request: Request<Body>) -> StatusCode {
    let (parts, _) = request.into_parts();
    let tokens = known.tokens.fetch_add(COST, Ordering::SeqCst) + COST;
    known.most.fetch_max(tokens, Ordering::SeqCst);
    tokio::task::yield_now().await;
    let n = number(&parts, "x-n");
    let used = n % (COST + 1);
    // Subtract first, before the store gives the units back and another request takes them.
    let release = |used| known.tokens.fetch_sub(COST - used, Ordering::SeqCst);
    match n % 4 {
        0 => {
            release(used);
            usage.settle("tokens", used).unwrap();
        }
        1 => {
            release(0);
            usage.refund().unwrap();
        }
        2 => {
            release(used);
            for _ in 0..used {
                usage.add("tokens", 1).unwrap();
            }
            usage.add("tokens", 0).unwrap();
        }
        _ => {}
    }
    if n.is_multiple_of(3) {
        return StatusCode::BAD_GATEWAY;
    }
    known.requests.fetch_add(1, Ordering::SeqCst);
    StatusCode::OK
}

/// Laws 5, 6 and 10: while 64 tasks charge, refund and settle, the store never holds more than the
/// limit; and in the end each limit holds exactly what the admitted requests have cost, each by its
/// own rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_05_06_10_charge_with_refunds_and_settlements_racing() {
    for store in Store::both().await {
        let (name, known) = (store.name, Known::default());
        let limits = all([
            budget("requests", 100_000).refund_if(limit::server_error),
            budget("tokens", UNITS).cost(estimate).settled_later(),
        ]);
        let app = Router::new()
            .route("/", get(work))
            .with_state(known.clone());
        let site = Arc::new(Site::new(store, limits, app).await);
        let headers = |task, turn| vec![("x-estimate", COST), ("x-n", task * 31 + turn * 17)];
        let admitted = race(&site, headers).await;
        assert!(
            (1..TASKS * 8).contains(&admitted),
            "{name}: {admitted} admitted, some and not all"
        );
        assert_eq!(
            UNITS - site.left("tokens", UNITS).await,
            known.tokens.load(Ordering::SeqCst),
            "{name}: law 10"
        );
        let requests = 100_000 - site.left("requests", 100_000).await;
        assert_eq!(
            requests,
            known.requests.load(Ordering::SeqCst),
            "{name}: law 5"
        );
        assert!(known.most.load(Ordering::SeqCst) <= UNITS, "{name}: law 6");
        assert_eq!(site.layer.settlements().failed, 0);
    }
}

/// Tiers in a window that does not end during the test, so that what is used in it is all that was
/// ever charged.
fn tiers(counts: [u64; 3]) -> [(&'static str, FixedWindow); 3] {
    let decade = Duration::from_secs(3650 * 86_400);
    let [low, middle, high] = counts.map(|count| FixedWindow::new(Rate::new(count, decade)));
    [("low", low), ("middle", middle), ("high", high)]
}

/// The present tier of all requests.
#[derive(Clone, Default)]
struct Table(Arc<AtomicUsize>);

impl Table {
    /// No tier is cached, so that a change is seen at once.
    fn plans(&self, name: &str, counts: [u64; 3]) -> Limit {
        let table = self.clone();
        plans(name, tiers(counts))
            .by(Header::new("x-user"))
            .lookup(move |_| {
                let table = table.clone();
                async move { Some(["low", "middle", "high"][table.0.load(Ordering::SeqCst) % 3]) }
            })
            .cache(100, Duration::ZERO)
            .unknown("low")
            .on_error(OnError::Closed)
    }
}

/// The total use of the key, as the largest tier sees it.
async fn used(site: &Site, name: &str, counts: [u64; 3]) -> u64 {
    site.settled().await;
    let (parts, ()) = Request::get("/")
        .header("x-user", USER)
        .body(())
        .unwrap()
        .into_parts();
    let key = Header::new("x-user").extract(&parts).unwrap();
    let policy = Policy::tiered(name, tiers(counts)).unwrap();
    let limiter =
        Limiter::new(site.store.backend.clone(), PolicySet::new(policy).unwrap()).unwrap();
    counts[2]
        - limiter
            .decide(&[Call::peek(key).in_tier(2)])
            .await
            .unwrap()
            .remaining()
}

const USER: u64 = 7;
/// So few units that most requests are refused.
const FEW: [u64; 3] = [200, 400, UNITS];
/// More than all requests together could use, even in the smallest tier. A settlement above the
/// estimate is debited as far as the tier that holds the key has room. Here there always is room,
/// so the final total is known.
const AMPLE: [u64; 3] = [100_000, 200_000, 300_000];

/// Does what [`work`] does, and uses more bytes than estimated, unless it refunds everything or
/// reports nothing.
async fn work_in_tiers(known: State<Known>, usage: Usage, request: Request<Body>) -> StatusCode {
    let n: u64 = request.headers()["x-n"].to_str().unwrap().parse().unwrap();
    let bytes = match n % 4 {
        0 => {
            usage.settle("bytes", COST + n % 7).unwrap();
            COST + n % 7
        }
        1 => 0,
        2 => {
            for _ in 0..5 {
                usage.add("bytes", 7).unwrap();
            }
            5 * 7
        }
        _ => COST,
    };
    known.bytes.fetch_add(bytes, Ordering::SeqCst);
    work(known, usage, request).await
}

/// Laws 5, 6 and 10 while 64 tasks share one identity and each request moves it to another tier:
/// the store never holds more than the largest tier allows, and in the end each limit holds exactly
/// what the admitted requests have cost, wherever they were charged, settled and refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_05_06_10_charge_with_tiers_changing_under_refunds_and_settlements() {
    for store in Store::both().await {
        let (name, known, table) = (store.name, Known::default(), Table::default());
        let limits = all([
            table
                .plans("requests", AMPLE)
                .refund_if(limit::server_error),
            table.plans("tokens", FEW).cost(estimate).settled_later(),
            table.plans("bytes", AMPLE).cost(estimate).settled_later(),
        ]);
        let app = Router::new()
            .route("/", get(work_in_tiers))
            .with_state(known.clone());
        let site = Arc::new(Site::new(store, limits, app).await);
        let headers = move |task, turn| {
            table.0.store((task * 5 + turn) as usize, Ordering::SeqCst);
            vec![
                ("x-user", USER),
                ("x-estimate", COST),
                ("x-n", task * 31 + turn * 17),
            ]
        };
        let admitted = race(&site, headers).await;
        assert!(
            (1..TASKS * 8).contains(&admitted),
            "{name}: {admitted} admitted, some and not all"
        );
        assert_eq!(
            used(&site, "tokens", FEW).await,
            known.tokens.load(Ordering::SeqCst),
            "{name}: law 10"
        );
        assert_eq!(
            used(&site, "bytes", AMPLE).await,
            known.bytes.load(Ordering::SeqCst),
            "{name}: law 10"
        );
        assert_eq!(
            used(&site, "requests", AMPLE).await,
            known.requests.load(Ordering::SeqCst),
            "{name}: law 5"
        );
        assert!(known.most.load(Ordering::SeqCst) <= UNITS, "{name}: law 6");
        assert_eq!(site.layer.settlements().failed, 0);
    }
}

/// 64 tasks, each of which sends eight requests in turn. Returns how many were admitted.
async fn race(
    site: &Arc<Site>,
    headers: impl Fn(u64, u64) -> Vec<(&'static str, u64)> + Send + Sync + 'static,
) -> u64 {
    let headers = Arc::new(headers);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (site, headers) = (Arc::clone(site), Arc::clone(&headers));
            tokio::spawn(async move {
                let mut admitted = 0;
                for turn in 0..8 {
                    match site.get("/", &headers(task, turn)).await.status() {
                        StatusCode::TOO_MANY_REQUESTS => {}
                        StatusCode::OK | StatusCode::BAD_GATEWAY => admitted += 1,
                        other => panic!("{other}"),
                    }
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    admitted
}

/// Law 10: of 64 tasks that settle one charge at the same time, one succeeds; and the end of the
/// response comes too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_10_charge_settled_by_64_at_once_is_settled_once() {
    for store in Store::both().await {
        let name = store.name;
        let won = Arc::new(AtomicU64::new(u64::MAX));
        let handler = {
            let won = Arc::clone(&won);
            move |usage: Usage| async move {
                let barrier = Arc::new(Barrier::new(TASKS as usize));
                let tasks: Vec<_> = (0..TASKS)
                    .map(|n| {
                        let (usage, barrier, won) =
                            (usage.clone(), Arc::clone(&barrier), Arc::clone(&won));
                        tokio::spawn(async move {
                            barrier.wait().await;
                            let settled = usage.settle("tokens", n).is_ok();
                            if settled {
                                won.store(n, Ordering::SeqCst);
                            }
                            u64::from(settled)
                        })
                    })
                    .collect();
                let mut winners = 0;
                for task in tasks {
                    winners += task.await.unwrap();
                }
                winners.to_string()
            }
        };
        let limit = budget("tokens", UNITS)
            .cost(COST)
            .settled_later()
            .refund_if(limit::successful)
            .refund_aborted();
        let site = Site::new(store, limit, Router::new().route("/", get(handler))).await;
        assert_eq!(site.get("/", &[]).await.body(), "1", "{name}");
        assert_eq!(
            UNITS - site.left("tokens", UNITS).await,
            won.load(Ordering::SeqCst),
            "{name}"
        );
    }
}
