//! Decisions of many tasks at once, beside a plain client and redis-benchmark.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Backend, Key, PolicySet};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::{Server, redis};

use crate::capture::Captured;
use crate::load::{benchmark, closed_loop};
use crate::measure::{Sample, median, rounds, sample, thousands};
use crate::scripts::policy;

const TASKS: [usize; 5] = [1, 16, 64, 256, 1_024];

pub(crate) fn run(server: &Server) {
    let captured = Captured::of(server, PolicySet::new(policy("p")).expect("a set"));
    println!(
        "| tasks | what | decisions/s | ÷ redis-benchmark | ÷ plain client | p50, µs | p99, µs | \
            client CPU, µs | server CPU, µs |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for tasks in TASKS {
        let mut samples: [Vec<Sample>; 4] = Default::default();
        for _ in 0..rounds() {
            samples[0].push(by_benchmark(server, &captured, tasks));
            samples[1].push(plain(server, &captured, tasks));
            samples[2].push(backend(server, tasks, 1));
            samples[3].push(backend(server, tasks, 64));
        }
        let rate = |row: usize| median(&samples[row], |sample| sample.per_second).0;
        let names = [
            "redis-benchmark, pipelined",
            "plain multiplexed client",
            "unbatched",
            "batched",
        ];
        for (row, name) in names.into_iter().enumerate() {
            let figure = |figure: fn(&Sample) -> f64| median(&samples[row], figure).0;
            println!(
                "| {tasks} | {name} | {} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} | {:.2} |",
                thousands(median(&samples[row], |sample| sample.per_second)),
                rate(row) / rate(0),
                rate(row) / rate(1),
                figure(|sample| sample.p50),
                figure(|sample| sample.p99),
                figure(|sample| sample.client),
                figure(|sample| sample.server),
            );
        }
    }
    println!();
}

/// One connection with as many commands under way as there are tasks.
fn by_benchmark(server: &Server, captured: &Captured, tasks: usize) -> Sample {
    let script = captured.with_arguments();
    let count = if tasks == 1 { 20_000 } else { 150_000 };
    let mut told = Vec::new();
    let mut sample = sample(server, || {
        told = benchmark(
            server,
            &script,
            &["throttle{all}p:__rand_int__"],
            1,
            tasks.min(256),
            count,
        );
        (count as u64, Vec::new())
    });
    (sample.per_second, sample.p50, sample.p99) = (told[0], told[1], told[2]);
    sample.client = f64::NAN;
    sample
}

/// The same script by the client itself, as an application would call it.
fn plain(server: &Server, captured: &Captured, tasks: usize) -> Sample {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let sha: String = server.query(&["SCRIPT", "LOAD", &String::from_utf8_lossy(&captured.source)]);
    let words: Arc<Vec<Vec<u8>>> = Arc::new(captured.call[4..].to_vec());
    let connection = runtime.block_on(async {
        let client = redis::Client::open(server.url()).expect("a URL");
        client
            .get_multiplexed_async_connection()
            .await
            .expect("a connection")
    });
    let step = move |key: u64| {
        let (mut connection, words, sha) = (connection.clone(), Arc::clone(&words), sha.clone());
        async move {
            let mut command = redis::cmd("EVALSHA");
            command
                .arg(sha)
                .arg(1)
                .arg(format!("throttle{{all}}p:{key:012}"));
            for word in words.iter() {
                command.arg(word);
            }
            let _: Vec<u8> = command
                .query_async(&mut connection)
                .await
                .expect("an answer");
        }
    };
    closed_loop(&runtime, tasks.min(16), step.clone());
    sample(server, || closed_loop(&runtime, tasks, step))
}

pub(crate) fn backend(server: &Server, tasks: usize, max_batch: usize) -> Sample {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let backend = {
        let _inside = runtime.enter();
        let single = Single::new(&server.url()).expect("a URL");
        let builder = RedisBackend::builder(single)
            .max_batch(max_batch)
            .queue(4_096)
            .deadline(Duration::from_secs(1));
        builder.build().expect("valid options")
    };
    let set = PolicySet::new(policy("p")).expect("a set");
    let prepared = Arc::new(backend.prepare(set).expect("a set"));
    let step = move |key: u64| {
        let decision = backend.decide(&prepared, &[Call::from(Key::from(key))]);
        async move {
            assert!(decision.await.expect("a decision").is_admitted());
        }
    };
    closed_loop(&runtime, tasks.min(16), step.clone());
    sample(server, || closed_loop(&runtime, tasks, step))
}
