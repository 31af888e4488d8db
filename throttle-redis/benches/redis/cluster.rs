//! Decisions of many tasks on a cluster of three masters: about one key, and about keys in all
//! slots.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Backend, Key, PolicySet};
use throttle_redis::{Cluster, RedisBackend};
use throttle_test_servers::Cluster as Servers;

use crate::load::closed_loop;
use crate::measure::{Sample, median, rounds, sample_of, thousands};
use crate::scripts::policy;

/// Tasks, and whether all of them ask about one key.
const LOADS: [(usize, bool); 3] = [(64, true), (512, true), (64, false)];

pub(crate) fn run(servers: &Servers) {
    println!(
        "| tasks | keys | what | decisions/s | calls a decision | p50, µs | p99, µs | client CPU, \
            µs | servers' CPU, µs |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (tasks, is_hot) in LOADS {
        let mut samples: [Vec<(Sample, f64)>; 2] = Default::default();
        for _ in 0..rounds() {
            samples[0].push(backend(servers, tasks, is_hot, 1));
            samples[1].push(backend(servers, tasks, is_hot, 64));
        }
        let keys = if is_hot { "one" } else { "100,000" };
        for (samples, name) in samples.iter().zip(["unbatched", "batched"]) {
            let (samples, calls): (Vec<Sample>, Vec<f64>) = samples.iter().copied().unzip();
            let figure = |figure: fn(&Sample) -> f64| median(&samples, figure).0;
            println!(
                "| {tasks} | {keys} | {name} | {} | {:.3} | {:.0} | {:.0} | {:.2} | {:.2} |",
                thousands(median(&samples, |sample| sample.per_second)),
                calls.iter().sum::<f64>() / calls.len() as f64,
                figure(|sample| sample.p50),
                figure(|sample| sample.p99),
                figure(|sample| sample.client),
                figure(|sample| sample.server),
            );
        }
    }
    println!();
}

/// With the calls a decision.
fn backend(servers: &Servers, tasks: usize, is_hot: bool, max_batch: usize) -> (Sample, f64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let urls = servers.urls();
    let backend = {
        let _inside = runtime.enter();
        let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
        let builder = RedisBackend::builder(cluster)
            .per_key_slot()
            .max_batch(max_batch);
        builder
            .queue(4_096)
            .deadline(Duration::from_secs(1))
            .build()
            .expect("valid options")
    };
    let set = PolicySet::new(policy("p")).expect("a set");
    let prepared = Arc::new(backend.prepare(set).expect("a set"));
    let asked = backend.clone();
    let step = move |key: u64| {
        let decision = asked.decide(
            &prepared,
            &[Call::from(Key::from(if is_hot { 0 } else { key }))],
        );
        async move {
            decision.await.expect("a decision");
        }
    };
    closed_loop(&runtime, tasks.min(16), step.clone());
    let before = backend.stats();
    let cpu = || {
        servers
            .nodes()
            .map(throttle_test_servers::Server::cpu_time)
            .sum()
    };
    let sample = sample_of(cpu, || closed_loop(&runtime, tasks, step));
    let after = backend.stats();
    let calls = (after.calls - before.calls) as f64 / (after.decisions - before.decisions) as f64;
    (sample, calls)
}
