//! Processes that race for the last units of many keys admit exactly as many as there are: on one server, and on a cluster.
//!
//! This program starts itself again as the processes that race, so it brings a `main` of its own.

#![allow(clippy::print_stdout, reason = "it is its own test runner")]

use std::env;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Backend, Call, FixedWindow, Gcra, Key, LimitSet, Policy, Rate, Rule};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder, Single};
use throttle_test_servers::{Cluster as Servers, Server};

const PROCESSES: usize = 8;
const KEYS: u64 = 20;
const K: u64 = 37;
/// Tasks of a process, each with tries for every key.
const TASKS: usize = 4;

const TESTS: [&str; 4] = ["single", "single_unmerged", "cluster_together", "cluster_spread"];

fn main() -> ExitCode {
    if let Ok(way) = env::var("EXACTLY_K_WAY") {
        race(&way, &env::var("EXACTLY_K_URLS").expect("URLs"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let name = |way: &str| format!("law_06_exactly_k_of_{PROCESSES}_processes::{way}");
    let chosen =
        TESTS.iter().filter(|way| wanted.is_empty() || wanted.iter().any(|word| name(way).contains(word.as_str())));
    if env::args().any(|word| word == "--list") {
        chosen.for_each(|way| println!("{}: test", name(way)));
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for way in chosen {
        let wrong = check(way);
        println!("test {} ... {}", name(way), if wrong.is_empty() { "ok" } else { "FAILED" });
        wrong.iter().for_each(|wrong| println!("    {wrong}"));
        if wrong.is_empty() { passed += 1 } else { failed += 1 }
    }
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lets processes race; returns what is wrong with what they admitted.
fn check(way: &str) -> Vec<String> {
    let (server, cluster);
    let urls = if way.starts_with("single") {
        server = Server::start();
        vec![server.url()]
    } else {
        cluster = Servers::shared();
        cluster.urls()
    };
    let racing: Vec<Child> = (0..PROCESSES).map(|_| start(way, &urls.join(" "))).collect();
    let mut admitted = vec![0; 2 * KEYS as usize];
    for process in racing {
        let output = process.wait_with_output().expect("a process that races");
        if !output.status.success() {
            return vec!["a process that races failed".to_owned()];
        }
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        for (sum, count) in admitted.iter_mut().zip(told.split_whitespace()) {
            *sum += count.parse::<u64>().expect("a count");
        }
    }
    let wrong = |(place, count): (usize, &u64)| {
        let rule = if place < KEYS as usize { "one limit" } else { "two limits" };
        // Reserved apart, members may refuse early under a race; never too late.
        let early = way == "cluster_spread" && rule == "two limits" && *count <= K;
        (*count != K && !early).then(|| format!("key {place} of {rule}: {count} admitted of {K}"))
    };
    admitted.iter().enumerate().filter_map(wrong).collect()
}

fn start(way: &str, urls: &str) -> Child {
    let mut again = Command::new(env::current_exe().expect("this program"));
    again.env("EXACTLY_K_WAY", way).env("EXACTLY_K_URLS", urls).stdout(Stdio::piped());
    again.spawn().expect("this program, again")
}

fn builder(way: &str, urls: &str) -> RedisBuilder {
    let cluster = || RedisBackend::builder(Cluster::new(urls.split(' ')).expect("URLs"));
    let single = || RedisBackend::builder(Single::new(urls).expect("a URL"));
    match way {
        "single" => single(),
        "single_unmerged" => single().merge(1),
        "cluster_together" => cluster().together("k").prefix("together"),
        _ => cluster().spread().prefix("spread"),
    }
}

/// What one process does: it takes what it can get, and prints how much that was of each key.
#[tokio::main(worker_threads = 2)]
async fn race(way: &str, urls: &str) {
    let backend = builder(way, urls).deadline(Duration::from_secs(10)).build().expect("valid options");
    let day = |name: &str| Policy::new(name, FixedWindow::new(Rate::per_day(K))).expect("a policy");
    let slow = Policy::new("slow", Gcra::new(Rate::per_day(1)).burst(K)).expect("a policy");
    let one = Arc::new(backend.prepare(LimitSet::new(slow).expect("a set")).expect("a set"));
    let both = Rule::All(vec![day("own").into(), day("shared").into()]);
    let two = Arc::new(backend.prepare(LimitSet::new(both).expect("a set")).expect("a set"));
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (backend, one, two) = (backend.clone(), Arc::clone(&one), Arc::clone(&two));
        racing.spawn(async move {
            let mut admitted = vec![0; 2 * KEYS as usize];
            for _ in 0..K / 2 {
                for key in 0..KEYS {
                    let (own, other) = (Call::from(Key::from(key)), Call::from(Key::from(1_000 + key)));
                    let alone = backend.decide(&one, std::slice::from_ref(&own)).await.expect("a decision");
                    let together = backend.decide(&two, &[own, other]).await.expect("a decision");
                    admitted[key as usize] += u64::from(alone.is_allowed());
                    admitted[(KEYS + key) as usize] += u64::from(together.is_allowed());
                }
            }
            admitted
        });
    }
    let mut sums = vec![0; 2 * KEYS as usize];
    for admitted in racing.join_all().await {
        sums.iter_mut().zip(admitted).for_each(|(sum, count)| *sum += count);
    }
    println!("{}", sums.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
}
