//! Row 6: the store that several processes share is slow, gone, and back.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::{Proxy, Server};
use throttle_tower::{ClientIp, Gcra, OnError, Rate, ThrottleLayer, limit};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep};
use tower::ServiceExt;

use super::apps::{hello, request_from};
use super::page::{Row, Table};

pub const ROW: Row = Row {
    word: "store",
    title: "The shared store is slow, gone, and back",
    about: "One client sends 200 requests a second for 3 s in each phase, to a limit of 50 a \
        second on a real
redis-server behind a proxy that holds replies for 100 ms (slow), or refuses connections (gone). \
Exact is 160
admitted, of 3 s and the pause of 0.2 s before them, and up to 50 more by a counter that was at \
rest in the phase
before. Cells: **admitted**, of those not admitted how many with 503, and the 99th percentile of \
the response's
time. throttle's deadline is its default, 25 ms; `local(2)` admits half where it decides, because \
two processes
share the limit.

Not comparable: tower_governor, axum-governor, rate-net and quota have no remote store; nor have \
`limit_req` and a
stick table without peers. limitador has one, but 0.14.0 with its feature `redis_storage` does \
not compile without
`disk_storage`, which builds RocksDB.",
    run,
};

const PHASE: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(5);
const SLOW: Duration = Duration::from_millis(100);

const RULES: [(&str, OnError); 4] = [
    ("throttle, `OnError::Open`", OnError::Open),
    ("throttle, `OnError::Closed`", OnError::Closed),
    ("throttle, `OnError::local(1)`", OnError::local(1)),
    ("throttle, `OnError::local(2)`", OnError::local(2)),
];

fn run() -> String {
    let mut table = Table::new(&["limiter", "store works", "slow", "gone", "back"]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    for (row, (name, _)) in runtime
        .expect("a runtime")
        .block_on(phases())
        .iter()
        .zip(RULES)
    {
        table.row(&[&[name.to_owned()][..], row].concat());
    }
    table.text()
}

/// The cells of each rule.
async fn phases() -> Vec<Vec<String>> {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let apps: Vec<Router> = RULES
        .iter()
        .enumerate()
        .map(|(n, (_, rule))| app(&proxy, n, *rule))
        .collect();
    let mut cells = vec![Vec::new(); apps.len()];
    // The first budget and connection.
    load(&apps).await;
    let faults: [&dyn Fn(); 4] = [
        &|| (),
        &|| proxy.delay_replies(SLOW),
        &|| {
            proxy.heal();
            proxy.refuse(true);
            proxy.reset_all();
        },
        &|| proxy.refuse(false),
    ];
    for fault in faults {
        fault();
        for (cells, cell) in cells.iter_mut().zip(load(&apps).await) {
            cells.push(cell);
        }
    }
    cells
}

/// An app whose limit has keys of its own on the server, by its number.
fn app(proxy: &Proxy, number: usize, rule: OnError) -> Router {
    let connector = Single::new(&proxy.url()).expect("a URL");
    let backend = RedisBackend::builder(connector)
        .prefix(format!("rule{number}"))
        .build()
        .expect("a valid backend");
    let per_ip = limit("per-ip", Gcra::new(Rate::per_second(50))).by(ClientIp::peer());
    let layer = ThrottleLayer::builder(per_ip)
        .on_error(rule)
        .backend(backend)
        .build();
    hello().layer(layer.expect("the backend holds the limit"))
}

/// A phase's cell for each app.
async fn load(apps: &[Router]) -> Vec<String> {
    let mut ticks = interval(EVERY);
    let start = Instant::now();
    let mut asked: Vec<Vec<JoinHandle<_>>> = apps.iter().map(|_| Vec::new()).collect();
    while start.elapsed() < PHASE {
        ticks.tick().await;
        for (app, asked) in apps.iter().zip(&mut asked) {
            asked.push(tokio::spawn(ask(app.clone())));
        }
    }
    let mut cells = Vec::new();
    for asked in asked {
        let mut seen = Vec::new();
        for one in asked {
            seen.push(one.await.expect("no request panics"));
        }
        cells.push(cell(seen));
    }
    sleep(SLOW * 2).await;
    cells
}

async fn ask(app: Router) -> (StatusCode, Duration) {
    let start = Instant::now();
    let request = request_from(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let response = app.oneshot(request).await.expect("the app answers");
    (response.status(), start.elapsed())
}

fn cell(seen: Vec<(StatusCode, Duration)>) -> String {
    let count = |status| seen.iter().filter(|(seen, _)| *seen == status).count();
    let (admitted, unavailable) = (
        count(StatusCode::OK),
        count(StatusCode::SERVICE_UNAVAILABLE),
    );
    let mut times: Vec<Duration> = seen.iter().map(|(_, time)| *time).collect();
    times.sort();
    let p99 = times[times.len() * 99 / 100].as_secs_f64() * 1e3;
    format!("**{admitted}**, {unavailable}, {p99:.1} ms")
}
