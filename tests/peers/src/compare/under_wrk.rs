//! Row 8: a server under load.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderName;

use super::apps::{APPS, hello, request_from};
use super::ideal::Quota;
use super::page::{Row, Table, output};
use super::servers::{self, Server, stick_table};
use crate::layer::answer;
use crate::report::spread;
use crate::server::{Server as OwnServer, micros_of_a_request, serve_on_one_thread};

pub const ROW: Row = Row {
    word: "server",
    title: "A server under wrk: what the limiter costs it",
    about: "The processor time of a server of one thread, a request, with a limiter that admits \
        everything and
without: median of 5 rounds (least–most), in each of which all take turns of a second under `wrk \
-t1 -c16`. *More*
compares neighbours in time. All Rust apps are axum's hello. *Headers* are those that the limiter \
adds to an
admitted response. nginx serves a file of five bytes, HAProxy answers itself.",
    run,
};

/// The argument that makes this program serve one app.
pub const CHILD: &str = "--serve-compared";

const ROUNDS: usize = 5;
const QUOTA: Quota = Quota {
    count: 1_000_000,
    period: Duration::from_secs(1),
};

fn app(place: usize) -> (&'static str, Router) {
    match place.checked_sub(1) {
        None => ("axum, no layer", hello()),
        Some(place) => (APPS[place].name, (APPS[place].make)(QUOTA)),
    }
}

/// Serves one app until the process is killed.
pub fn child(args: &[String]) {
    serve_on_one_thread(
        app(args.first().and_then(|place| place.parse().ok()).expect(
            "an app's \
        number",
        ))
        .1,
    );
}

struct Contender {
    name: String,
    address: String,
    process_id: u32,
    headers: String,
    /// The place of the same server without a limiter.
    base: usize,
}

fn run() -> String {
    if output("wrk", &["--version"]).is_none() {
        return "Not measured: wrk is not installed (apt-get install wrk).\n".to_owned();
    }
    let apps: Vec<OwnServer> = (0..=APPS.len())
        .map(|place| OwnServer::start(CHILD, place))
        .collect();
    let own = apps.iter().enumerate().map(|(place, server)| {
        let (name, app) = app(place);
        let (name, address) = (name.to_owned(), server.address.clone());
        Contender {
            name,
            address,
            process_id: server.process_id(),
            headers: added_by(app),
            base: 0,
        }
    });
    let mut all: Vec<Contender> = own.collect();
    let others = if servers::installed() {
        others()
    } else {
        Vec::new()
    };
    for (place, (name, server)) in others.iter().enumerate() {
        let (name, address) = ((*name).to_owned(), format!("127.0.0.1:{}", server.port));
        let base = apps.len() + place - place % 2;
        all.push(Contender {
            name,
            address,
            process_id: server.process_id(),
            headers: String::new(),
            base,
        });
    }
    let mut rounds = vec![Vec::new(); all.len()];
    for round in 0..=ROUNDS {
        for (contender, micros) in all.iter().zip(&mut rounds) {
            let cost = micros_of_a_request(contender.process_id, &contender.address, 1);
            // The first round only warms up.
            if round > 0 {
                micros.push(cost);
            }
        }
    }
    let mut table = Table::new(&["server", "µs a request", "more than without", "headers"]);
    for (place, (contender, micros)) in all.iter().zip(&rounds).enumerate() {
        let more: Vec<f64> = micros
            .iter()
            .zip(&rounds[contender.base])
            .map(|(with, without)| with - without)
            .collect();
        let more = if contender.base == place {
            "–".to_owned()
        } else {
            spread(&more, 2)
        };
        table.row(&[
            contender.name.clone(),
            spread(micros, 2),
            more,
            contender.headers.clone(),
        ]);
    }
    table.text()
}

/// The names of the headers of an admitted response that are about limits.
fn added_by(app: Router) -> String {
    let response = answer(app, request_from(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let names = response
        .headers()
        .keys()
        .map(HeaderName::as_str)
        .filter(|name| name.contains("ratelimit"));
    names.collect::<Vec<_>>().join(", ")
}

/// Each server without a limiter, then with one.
fn others() -> Vec<(&'static str, Server)> {
    let zone = "limit_req_zone $binary_remote_addr zone=one:1m rate=1000000r/s;";
    vec![
        ("nginx, no limit", Server::nginx("", "")),
        (
            "nginx, `limit_req`",
            Server::nginx(zone, "limit_req zone=one burst=1000000 nodelay;"),
        ),
        ("HAProxy, no limit", Server::haproxy("maxconn 400")),
        (
            "HAProxy, stick table",
            Server::haproxy(&stick_table(
                Quota {
                    count: 100_000_000,
                    ..QUOTA
                },
                "src",
            )),
        ),
    ]
}
