//! Streams that use more than remains.

use std::sync::Arc;

use throttle_tower::all;

use crate::site::{Books, Site, estimate};
use crate::store::{Store, budget};
use crate::streams::{STREAMS, model};

const UNITS: u64 = 2_000;
const STEP: u64 = 5;

/// A handler that learns that the limit is exhausted overruns it by what it had in flight: in
/// memory by the step that no longer fits. No new request is admitted, and the limit is used to the
/// last unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_charge_never_exceeds_the_limit_and_the_overrun_is_in_flight() {
    for store in Store::both().await {
        let (name, books) = (store.name, Books::default());
        let limits = all([budget("tokens", UNITS).cost(estimate).settled_later()]);
        let site = Arc::new(Site::new(store, limits, model(&books, STEP, true)).await);
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| {
                let site = Arc::clone(&site);
                let ask = async move {
                    site.get("/", &[("x-estimate", 10), ("x-actual", 100)])
                        .await
                        .status()
                };
                tokio::spawn(ask)
            })
            .collect();
        for stream in streams {
            stream.await.unwrap();
        }
        assert_eq!(
            site.left("tokens", UNITS).await,
            0,
            "{name}: 64 x 100 were wanted"
        );
        let refused = site.get("/", &[("x-estimate", 1), ("x-actual", 1)]).await;
        assert_eq!(refused.status(), 429, "{name}");
        let over = books.total() - UNITS;
        // On Redis a stream continues while it waits for the store's answer, at most to the end of
        // what the pending call charges.
        let each = if name == "memory" { STEP } else { 100 };
        assert!(over <= STREAMS * each, "{name}: {over} over");
    }
}
