//! One hot key: a round trip for each decision, or a lease.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Backend, Call, Gcra, IntoAlgorithm, Key, LimitSet, Policy, Rate};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Server;

use crate::load::closed_loop;
use crate::measure::{Sample, median, rounds, sample, thousands};

pub(crate) fn run(server: &Server) {
    let mut samples: [Vec<Sample>; 2] = Default::default();
    for _ in 0..rounds() {
        samples[0].push(hot(server, None));
        samples[1].push(hot(server, Some(100_000)));
    }
    println!("| one hot key, one task | decisions/s | client CPU, µs |\n|---|---|---|");
    for (name, samples) in ["a round trip each", "leases of 100,000"].into_iter().zip(&samples) {
        let rate = thousands(median(samples, |sample| sample.per_second));
        println!("| {name} | {rate} | {:.2} |", median(samples, |sample| sample.client).0);
    }
    let rate = |row: usize| median(&samples[row], |sample| sample.per_second).0;
    println!("\nleases ÷ round trips: {:.0}\n", rate(1) / rate(0));
}

fn hot(server: &Server, lease: Option<u64>) -> Sample {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let backend = {
        let _inside = runtime.enter();
        let single = Single::new(&server.url()).expect("a URL");
        let builder = RedisBackend::builder(single).deadline(Duration::from_secs(1));
        let builder = match lease {
            Some(units) => builder.lease("hot", units),
            None => builder,
        };
        builder.build().expect("valid options")
    };
    let gcra = Gcra::new(Rate::per_second(50_000_000)).burst(100_000_000).into_algorithm().expect("a rate");
    let set = LimitSet::new(Policy::new("hot", gcra).expect("a policy")).expect("a set");
    let prepared = Arc::new(backend.prepare(set).expect("a set"));
    let calls = [Call::from(Key::from("hot"))];
    let step = move |_| {
        // As the layer does: what can be had without waiting is not waited for.
        let at_once = backend.decide_at_once(&prepared, &calls);
        let waiting = at_once.is_none().then(|| backend.decide(&prepared, &calls));
        async move {
            let allowed = match waiting {
                None => at_once.is_some_and(|decision| decision.is_allowed()),
                Some(waiting) => waiting.await.expect("a decision").is_allowed(),
            };
            assert!(allowed);
        }
    };
    closed_loop(&runtime, 1, step.clone());
    sample(server, || closed_loop(&runtime, 1, step))
}
