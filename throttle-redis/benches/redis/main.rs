//! What a decision costs, beside what the server can do with the same script in the same run.
//!
//! ```text
//! cargo bench -p tower-throttle-redis --all-features                 every table
//! cargo bench -p tower-throttle-redis --all-features -- tasks script  some of them: tasks, script, cluster, sizing
//! ROUNDS=7 cargo bench …                                        more rounds than 5; rows are their medians
//! ```
//!
//! `sizing` measures the figures of `SIZING.md` on this machine, and says how many servers they take.
//!
//! The server runs on the first processor and the client on the second, where `taskset` is there to
//! see to it.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::float_arithmetic,
    reason = "it prints figures"
)]

mod capture;
mod cluster;
mod load;
mod measure;
mod scripts;
mod sizing;
mod tasks;

use std::env;
use std::process::Command;

use throttle_test_servers::{Cluster, Server};

fn main() {
    let wanted: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    let server = Server::start();
    if let Some(process) = server.process_id() {
        pin(process, "0");
    }
    pin(std::process::id(), "1");
    let version = server.info("redis_version");
    println!(
        "redis {version}, {} rounds, medians (least to most)\n",
        measure::rounds()
    );
    if wants("script") {
        scripts::run(&server);
    }
    if wants("tasks") {
        tasks::run(&server);
    }
    if wants("sizing") {
        sizing::run(&server);
    }
    if wants("cluster") {
        let servers = Cluster::start();
        servers
            .nodes()
            .filter_map(Server::process_id)
            .for_each(|process| pin(process, "0"));
        cluster::run(&servers);
    }
}

fn pin(process: u32, processor: &str) {
    let _ = Command::new("taskset")
        .args(["-a", "-p", "-c", processor, &process.to_string()])
        .output();
}
