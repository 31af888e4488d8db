//! Metrics in the format that Prometheus reads.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Upper bounds in seconds.
const SECONDS: [f64; 10] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 1.0,
];

/// Installs the recorder of this program.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?;
    let handle = builder.install_recorder()?;
    let recorder = handle.clone();
    // Without it, values of histograms wait for a scrape.
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            recorder.run_upkeep();
        }
    });
    Ok(handle)
}
