//! Metrics in the format that Prometheus reads.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Upper bounds in seconds, from a decision of a Redis beside the server to a long wait in a queue.
const SECONDS: [f64; 14] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
/// A call to Redis carries at most 64 decisions.
const BATCHES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// Installs the recorder of this program.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        // Without buckets the exporter makes summaries, whose quantiles cannot be added up over
        // processes.
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(
            Matcher::Full("throttle_redis_batch_decisions".to_owned()),
            &BATCHES,
        )?
        .install_recorder()?;
    let recorder = handle.clone();
    tokio::spawn(async move {
        // Values wait in memory until they are sorted into the buckets; a server that nobody
        // scrapes must do it too.
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            recorder.run_upkeep();
        }
    });
    Ok(handle)
}
