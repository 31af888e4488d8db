//! A real server under load: what a layer costs the server's processor, a request, over no layer.
//!
//! Each app is served by a process of its own with one thread, and wrk loads one after the other,
//! round after round. What counts is the processor time of the server's thread, which the kernel
//! measures, not the requests a second.

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
const SECONDS: u32 = 2;
const CONNECTIONS: &str = "16";

pub fn run() {
    if Command::new("wrk").arg("--version").output().is_err() {
        eprintln!(
            "server: wrk is not installed; install it (apt-get install wrk), then run this \
            again"
        );
        std::process::exit(2);
    }
    let apps = layer::served();
    let servers: Vec<Server> = (0..apps.len())
        .map(|place| Server::start(CHILD, place))
        .collect();
    let mut rounds = vec![Vec::new(); servers.len()];
    for round in 0..=ROUNDS {
        for (server, micros) in servers.iter().zip(&mut rounds) {
            let cost = micros_of_a_request(server.process_id(), &server.address, SECONDS);
            // The first round only warms up.
            if round > 0 {
                micros.push(cost);
            }
        }
    }
    report::title(
        "A server under wrk, 16 connections, one thread: its processor time (µs a request; \
            median, least–most)",
        &["layer", "µs a request", "more than no layer"],
    );
    for ((name, _), micros) in apps.iter().zip(&rounds) {
        let more: Vec<f64> = micros
            .iter()
            .zip(&rounds[0])
            .map(|(with, without)| with - without)
            .collect();
        report::row(&[(*name).to_owned(), spread(micros, 2), spread(&more, 2)]);
    }
}

/// A process that serves one app.
pub struct Server {
    process: Child,
    pub address: String,
}

impl Server {
    /// Starts this program as a child with this flag, which prints its address.
    pub fn start(flag: &str, place: usize) -> Self {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut process = Command::new(program)
            .args([flag, &place.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts again");
        let mut address = String::new();
        let stdout = process.stdout.take().expect("the output is piped");
        BufReader::new(stdout)
            .read_line(&mut address)
            .expect("the server prints its address");
        Self {
            process,
            address: address.trim().to_owned(),
        }
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

/// Loads a server of one thread, and divides its processor time by the requests that it answered.
pub fn micros_of_a_request(process_id: u32, address: &str, seconds: u32) -> f64 {
    let before = cpu_nanos(process_id);
    let (url, seconds) = (format!("http://{address}/"), format!("{seconds}s"));
    let load = Command::new("wrk")
        .args(["-t1", "-c", CONNECTIONS, "-d", &seconds, &url])
        .output();
    let text = String::from_utf8(load.expect("wrk runs").stdout).expect("wrk prints text");
    assert!(
        !text.contains("Non-2xx"),
        "every request is admitted: {text}"
    );
    let requests = text
        .lines()
        .find_map(|line| line.trim().split_once(" requests in "));
    let requests: f64 = requests
        .and_then(|(n, _)| n.parse().ok())
        .unwrap_or_else(|| {
            panic!(
                "no \
        count: {text}"
            )
        });
    (cpu_nanos(process_id) - before) as f64 / 1e3 / requests
}

/// Nanoseconds that the process's first thread has run.
fn cpu_nanos(process_id: u32) -> u64 {
    let path = format!("/proc/{process_id}/schedstat");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.split(' ')
        .next()
        .and_then(|nanos| nanos.parse().ok())
        .expect(
            "the first number is the \
        time on a processor",
        )
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves one app until the process is killed.
pub fn child(args: &[String]) {
    let place: usize = args
        .first()
        .and_then(|place| place.parse().ok())
        .expect("a row's number");
    let (_, app) = layer::served().swap_remove(place);
    serve_on_one_thread(app);
}

pub fn serve_on_one_thread(app: Router) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(serve(app));
}

async fn serve(app: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!(
        "{}",
        listener
            .local_addr()
            .expect("a bound listener has an address")
    );
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .await
        .expect("the server serves");
}
