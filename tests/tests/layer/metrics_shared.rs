//! What is reported of layers that share a runtime, a thread, plans or a backend with others.

use std::collections::BTreeMap;
use std::thread;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use throttle_tower::{Gcra, Header, Metrics, Rate, ThrottleLayer, limit, plans};
use tokio::runtime::{Builder, Runtime};

use crate::common::{Memory, get, keyed, memory, send_each, shared};

/// A runtime whose clock goes on only while it waits.
fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

fn layer() -> ThrottleLayer<Memory> {
    ThrottleLayer::builder(shared("all", 100))
        .backend(memory())
        .observe(Metrics::new("api"))
        .build()
        .unwrap()
}

/// What was reported since the last time, by the values of a metric's labels in their order.
fn reported(snapshotter: &Snapshotter, name: &str) -> BTreeMap<String, f64> {
    let series = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().name() == name);
    let values = series.map(|(key, _, _, value)| {
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| label.value().to_owned())
            .collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(level) => level.into_inner(),
            DebugValue::Histogram(values) => values.len() as f64,
        };
        (labels.join(" "), value)
    });
    values.filter(|(_, value)| *value != 0.0).collect()
}

fn admitted(snapshotter: &Snapshotter) -> f64 {
    reported(snapshotter, "throttle_requests_total")
        .remove("api admitted")
        .unwrap_or(0.0)
}

#[test]
fn requests_are_counted_before_they_are_answered_and_without_timers() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (runtime, layer) = (Builder::new_current_thread().build().unwrap(), layer());
    for _ in 0..5 {
        runtime.block_on(send_each(&layer, [get()]));
        assert_eq!(admitted(&snapshotter), 1.0);
    }
}

#[test]
fn requests_of_all_threads_are_counted_once() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let layer = layer();
    let (threads, requests) = (40, 5);
    let work = |requests| runtime().block_on(send_each(&layer, (0..requests).map(|_| get())));
    // It finds the recorder of this thread.
    work(1);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(|| work(requests)))));
    let all = f64::from(threads * requests + 1);
    let series = reported(&snapshotter, "throttle_requests_total");
    assert_eq!(
        series,
        BTreeMap::from([
            ("api admitted".to_owned(), 100.0),
            ("api refused".to_owned(), all - 100.0)
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn a_lookup_counts_for_the_layer_whose_request_asked_for_it() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let per_user = plans("per-user", [("free", Gcra::new(Rate::per_day(99)))])
        .by(Header::new("x-api-key"))
        .lookup(async |_: String| Some("free"))
        .unknown("free");
    let layer = |name| {
        ThrottleLayer::builder(per_user.clone())
            .backend(memory())
            .observe(Metrics::new(name))
            .build()
            .unwrap()
    };
    let (one, other) = (layer("one"), layer("other"));
    send_each(&one, ["ada", "ada", "bob"].map(keyed)).await;
    send_each(&other, ["ada", "cyd"].map(keyed)).await;
    let lookups = [
        ("one per-user found", 2.0),
        ("one per-user remembered", 1.0),
        ("other per-user found", 1.0),
        ("other per-user remembered", 1.0),
    ];
    let expected = lookups.map(|(labels, count)| (labels.to_owned(), count));
    assert_eq!(
        reported(&snapshotter, "throttle_plan_lookups_total"),
        BTreeMap::from(expected)
    );
}

#[tokio::test(start_paused = true)]
async fn keys_count_for_the_layer_on_whose_backend_they_are() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let layer = |name: &str| {
        let per_key = limit("per-key", Gcra::new(Rate::per_day(9))).by(Header::new("x-api-key"));
        ThrottleLayer::builder(per_key)
            .backend(memory())
            .observe(Metrics::new(name))
            .build()
            .unwrap()
    };
    let (one, other) = (layer("one"), layer("other"));
    let keys = || reported(&snapshotter, "throttle_keys");
    let expected = |layers: &[(&str, f64)]| {
        layers
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n))
            .collect()
    };

    send_each(&one, ["ada", "bob"].map(keyed)).await;
    send_each(&other, ["cyd"].map(keyed)).await;
    assert_eq!(
        keys(),
        expected(&[("one", 2.0), ("other", 1.0)]),
        "each has a name of its own"
    );
}
