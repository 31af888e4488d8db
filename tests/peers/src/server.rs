//! A real server under load: what a layer costs the server's processor, a request, over no layer.
//!
//! Each app is served by a process of its own with one thread, and wrk loads one after the other, round after round.
//! What counts is the processor time of the server's thread, which the kernel measures, not the requests a second.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use axum::Router;
use tokio::net::TcpListener;

use crate::layer;
use crate::report::{self, spread};

pub const CHILD: &str = "--serve";

const ROUNDS: usize = 7;
const SECONDS: &str = "2s";
const CONNECTIONS: &str = "16";

pub fn run() {
    if Command::new("wrk").arg("--version").output().is_err() {
        eprintln!("server: wrk is not installed; install it (apt-get install wrk), then run this again");
        std::process::exit(2);
    }
    let apps = layer::served();
    let servers: Vec<Server> = (0..apps.len()).map(Server::start).collect();
    let mut rounds = vec![Vec::new(); servers.len()];
    for round in 0..=ROUNDS {
        for (server, micros) in servers.iter().zip(&mut rounds) {
            let cost = server.micros_of_a_request();
            // The first round only warms up.
            if round > 0 {
                micros.push(cost);
            }
        }
    }
    report::title(
        "A server under wrk, 16 connections, one thread: its processor time (µs a request; median, least–most)",
        &["layer", "µs a request", "more than no layer"],
    );
    for ((name, _), micros) in apps.iter().zip(&rounds) {
        let more: Vec<f64> = micros.iter().zip(&rounds[0]).map(|(with, without)| with - without).collect();
        report::row(&[(*name).to_owned(), spread(micros, 2), spread(&more, 2)]);
    }
}

/// A process that serves one app.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(place: usize) -> Self {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut process = Command::new(program)
            .args([CHILD, &place.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts again");
        let mut address = String::new();
        let stdout = process.stdout.take().expect("the output is piped");
        BufReader::new(stdout).read_line(&mut address).expect("the server prints its address");
        Self { process, address: address.trim().to_owned() }
    }

    /// Loads the server and divides its processor time by the requests that it answered.
    fn micros_of_a_request(&self) -> f64 {
        let before = self.cpu_nanos();
        let url = format!("http://{}/", self.address);
        let load = Command::new("wrk").args(["-t1", "-c", CONNECTIONS, "-d", SECONDS, &url]).output();
        let text = String::from_utf8(load.expect("wrk runs").stdout).expect("wrk prints text");
        assert!(!text.contains("Non-2xx"), "every request is admitted: {text}");
        let requests = text.lines().find_map(|line| line.trim().split_once(" requests in "));
        let requests: f64 = requests.and_then(|(n, _)| n.parse().ok()).unwrap_or_else(|| panic!("no count: {text}"));
        (self.cpu_nanos() - before) as f64 / 1e3 / requests
    }

    /// Nanoseconds that the server's thread has run.
    fn cpu_nanos(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.split(' ')
            .next()
            .and_then(|nanos| nanos.parse().ok())
            .expect("the first number is the time on a processor")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves one app until the process is killed.
pub fn child(args: &[String]) {
    let place: usize = args.first().and_then(|place| place.parse().ok()).expect("a row's number");
    let (_, app) = layer::served().swap_remove(place);
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(serve(app));
}

async fn serve(app: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("{}", listener.local_addr().expect("a bound listener has an address"));
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await.expect("the server serves");
}
