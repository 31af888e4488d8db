//! Row 3: a client that waits exactly as long as `Retry-After` says.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use tokio::time::{sleep, sleep_until};

use super::apps::{APPS, request_from};
use super::http::Client;
use super::ideal::Quota;
use super::page::{Row, Table};
use super::servers::{self, Server, per, stick_table};
use crate::layer::answer;

pub const ROW: Row = Row {
    word: "retry-after",
    title: "`Retry-After` obeyed, and refused again",
    about: "40 clients, each alone with its budget of 2 and one more each 1.7 s, send until they \
        are refused, wait
exactly as many seconds as `Retry-After` says, and send once more, for 20 s of real time. The \
last column shows what
the answer costs: a wait of 1.7 s needs `Retry-After: 2`. Layers have their default settings of \
headers,
tower_governor has `use_headers()`.",
    run,
};

const QUOTA: Quota = Quota {
    count: 2,
    period: Duration::from_millis(3_400),
};
const CLIENTS: u8 = 40;
const LENGTH: Duration = Duration::from_secs(20);

fn run() -> String {
    let mut table = Table::new(&[
        "layer",
        "waits obeyed",
        "then refused",
        "told 0",
        "seconds \
        told, on average",
    ]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let rows = runtime.expect("a runtime").block_on(async {
        // All of them at once: they sleep nearly all the time.
        let running: Vec<_> = APPS
            .iter()
            .map(|app| tokio::spawn(clients((app.make)(QUOTA))))
            .collect();
        let mut rows = Vec::new();
        for running in running {
            rows.push(running.await.expect("no client panics"));
        }
        rows
    });
    for (app, seen) in APPS.iter().zip(rows) {
        let part = |count: usize| format!("{count} ({} %)", 100 * count / seen.waits.max(1));
        let average = seen.told as f64 / seen.waits.max(1) as f64;
        let counts = [
            seen.waits.to_string(),
            format!("**{}**", part(seen.refused)),
            part(seen.zeros),
        ];
        table.row(
            &[
                [app.name.to_owned()].as_slice(),
                &counts,
                &[format!("{average:.2}")],
            ]
            .concat(),
        );
    }
    let servers = if servers::installed() {
        what_servers_say()
    } else {
        String::new()
    };
    format!("{}{servers}", table.text())
}

/// nginx and HAProxy, of which a refusal is looked at.
fn what_servers_say() -> String {
    let quota = Quota {
        count: 1,
        period: Duration::from_secs(10),
    };
    let zone = format!(
        "limit_req_zone $binary_remote_addr zone=one:1m rate={};",
        per(quota)
    );
    let nginx = Server::nginx(&zone, "limit_req zone=one;");
    let haproxy = Server::haproxy(&stick_table(quota, "src"));
    let told = [("nginx", nginx), ("HAProxy", haproxy)].map(|(name, server)| {
        let mut client = Client::new(server.port);
        client.get(&[]);
        let refused = client.get(&[]);
        let told = refused.header("retry-after").unwrap_or("nothing");
        format!(
            "{name} answers {} and says {told} about when to come again",
            refused.status
        )
    });
    format!(
        "\nNot comparable: {}, as configured here.\n",
        told.join("; ")
    )
}

#[derive(Default)]
struct Seen {
    waits: usize,
    refused: usize,
    zeros: usize,
    told: u64,
}

async fn clients(app: Router) -> Seen {
    let running: Vec<_> = (0..CLIENTS)
        .map(|n| tokio::spawn(client(app.clone(), n)))
        .collect();
    let mut all = Seen::default();
    for running in running {
        let one = running.await.expect("no client panics");
        all.waits += one.waits;
        all.refused += one.refused;
        all.zeros += one.zeros;
        all.told += one.told;
    }
    all
}

async fn client(app: Router, n: u8) -> Seen {
    let peer = IpAddr::V4(Ipv4Addr::new(192, 0, 2, n));
    let send = || answer(app.clone(), request_from(peer));
    // Clients come at different fractions of a second.
    sleep(Duration::from_millis(u64::from(n) * 43)).await;
    let (start, mut seen) = (Instant::now(), Seen::default());
    while start.elapsed() < LENGTH {
        let response = send();
        if response.status() == StatusCode::OK {
            continue;
        }
        let told = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let told: u64 = told.expect("a refusal says when to come again");
        sleep_until(tokio::time::Instant::now() + Duration::from_secs(told)).await;
        seen.waits += 1;
        seen.told += told;
        seen.zeros += usize::from(told == 0);
        if send().status() != StatusCode::OK {
            seen.refused += 1;
            // With `Retry-After: 0` the client would send without a pause.
            sleep(Duration::from_millis(100)).await;
        }
    }
    seen
}
