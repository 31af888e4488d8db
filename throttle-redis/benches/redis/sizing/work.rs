//! The server's processor time.

use std::fmt::Write;
use std::{env, fs, process};

use throttle_test_servers::Server;

use super::{one_limit, progress, three_limits};
use crate::capture::Captured;
use crate::load::{benchmark, redis_benchmark};
use crate::measure::{Sample, median, rounds, sample};
use crate::{pin, tasks};

const COUNT: usize = 50_000;
/// Servers of the cluster whose slots are asked for.
const PRIMARIES: usize = 64;
const SLOTS: usize = 16_384 / PRIMARIES;

/// µs of the server's processor.
pub(super) struct Work {
    /// A decision in a call of its own.
    pub(super) alone: f64,
    /// A decision in a full batch.
    pub(super) batched: f64,
    /// Three limits in one call.
    pub(super) three: f64,
}

pub(super) fn measure(server: &Server) -> Work {
    let one = Captured::of(server, one_limit()).with_arguments();
    let three = Captured::of(server, three_limits()).with_arguments();
    let one_by_one = |server: &Server| sample_of_script(server, &one, &["p"]);
    println!("| what | server CPU, µs (least–most) |\n|---|---|");
    let alone = row("a decision in a call of its own", || one_by_one(server));
    let batched = row("a decision in a batch of up to 64", || {
        tasks::backend(server, 1_024, 64)
    });
    let three = row("three limits in one call", || {
        sample_of_script(server, &three, &["p", "q", "r"])
    });
    let ratio = |name: &str, figure: f64, of: f64| {
        println!("| {name} | × {:.2} |", figure / of);
    };

    let replica = Server::start();
    replica.process_id().into_iter().for_each(|id| pin(id, "1"));
    let port = server.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    wait_for(|| replica.info("master_link_status") == "up");
    let figure = row("the decision, with one replica", || one_by_one(server));
    ratio("of that without", figure, alone);
    drop(replica);

    server.config_set("appendonly", "yes");
    wait_for(|| server.info("aof_rewrite_in_progress") == "0");
    let figure = row("the decision, with an append-only file", || {
        one_by_one(server)
    });
    ratio("of that without", figure, alone);
    server.config_set("appendonly", "no");

    connections(&one, alone, &ratio);
    slots();
    fork();
    println!();
    Work {
        alone,
        batched,
        three,
    }
}

fn sample_of_script(server: &Server, script: &str, policies: &[&str]) -> Sample {
    let name = |policy: &&str| format!("throttle{{all}}{policy}:__rand_int__");
    let keys: Vec<String> = policies.iter().map(name).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    sample(server, || {
        benchmark(server, script, &keys, 50, 1, COUNT);
        (COUNT as u64, Vec::new())
    })
}

/// Prints the median of the rounds, and returns it.
fn row(name: &str, mut measured: impl FnMut() -> Sample) -> f64 {
    progress(name);
    let samples: Vec<Sample> = (0..rounds()).map(|_| measured()).collect();
    let (mid, least, most) = median(&samples, |sample| sample.server);
    println!("| {name} | {mid:.1} ({least:.1}–{most:.1}) |");
    mid
}

/// With TLS, and connections with and without it.
fn connections(script: &str, alone: f64, ratio: &dyn Fn(&str, f64, f64)) {
    let server = Server::builder().tls().start();
    server.process_id().into_iter().for_each(|id| pin(id, "0"));
    let url = server.tls_url();
    let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
    let tls_port: u16 = port.expect("a URL ends with the port");
    let sha: String = server.query(&["SCRIPT", "LOAD", script]);
    let key = "throttle{all}p:__rand_int__";
    let run = |port: u16, options: &[&str], command: &[&str], count: usize| {
        let counted = count.to_string();
        let options = [&["-c", "50", "-n", &counted], options].concat();
        sample(&server, || {
            redis_benchmark(port, &options, command);
            (count as u64, Vec::new())
        })
    };
    let tls = ["--tls", "--insecure"];
    let figure = row("the decision, over TLS", || {
        run(tls_port, &tls, &["EVALSHA", &sha, "1", key], COUNT)
    });
    ratio("of that without", figure, alone);
    let anew = ["-k", "0"];
    row("a connection and a PING", || {
        run(server.port(), &anew, &["PING"], COUNT / 5)
    });
    row("the same with TLS, ECDSA P-256", || {
        run(tls_port, &[&tls[..], &anew].concat(), &["PING"], COUNT / 50)
    });
}

/// `CLUSTER SLOTS` of a server whose configuration names a cluster of 64 primaries. The other 63
/// do not run, but the server takes them for healthy.
fn slots() {
    let mut nodes = String::new();
    for number in 0..PRIMARIES {
        let me = if number == 0 { "myself," } else { "" };
        let port = 20_000 + number;
        let first = number * SLOTS;
        let last = first + SLOTS - 1;
        let _ = writeln!(
            nodes,
            "{number:040x} 127.0.0.1:{port}@{} {me}master - 0 0 {number} connected {first}-{last}",
            port + 10_000
        );
    }
    let _ = writeln!(nodes, "vars currentEpoch {PRIMARIES} lastVoteEpoch 0");
    let file = env::temp_dir().join(format!("throttle-sizing-{}.conf", process::id()));
    fs::write(&file, nodes).expect("a file");
    let server = Server::builder()
        .arg("--cluster-enabled", "yes")
        .arg("--cluster-config-file", &file.to_string_lossy())
        .arg("--cluster-node-timeout", "600000")
        .start();
    server.process_id().into_iter().for_each(|id| pin(id, "0"));
    let count = COUNT / 5;
    row("CLUSTER SLOTS that lists 64 primaries", || {
        let counted = count.to_string();
        sample(&server, || {
            let options = ["-c", "50", "-n", &counted];
            redis_benchmark(server.port(), &options, &["CLUSTER", "SLOTS"]);
            (count as u64, Vec::new())
        })
    });
    drop(server);
    let _ = fs::remove_file(file);
}

/// How long a server with a million keys stands still to fork.
fn fork() {
    progress("a fork");
    let server = Server::start();
    server.command(&["DEBUG", "POPULATE", "1000000", "key", "42"]);
    let mut stops: Vec<f64> = (0..rounds())
        .map(|_| {
            server.command(&["BGSAVE"]);
            wait_for(|| server.info("rdb_bgsave_in_progress") == "0");
            let micros = server.info("latest_fork_usec");
            micros.parse::<f64>().expect("a number") / 1e3
        })
        .collect();
    stops.sort_by(f64::total_cmp);
    let used: f64 = server.info("used_memory").parse().expect("a number");
    println!(
        "| a fork of a server with {:.0} MB, which stops it | {:.0} ms ({:.0}–{:.0}) |",
        used / 1e6,
        stops[stops.len() / 2],
        stops[0],
        stops[stops.len() - 1]
    );
}

fn wait_for(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
