//! What a refusal that a user builds says about the wait.

use http::{Response, StatusCode};
use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
use tower::{Layer, ServiceExt};

use crate::common::{Strict, get, memory, text};

/// With jitter, the body and `Retry-After` must not state different waits. The jitter depends on a secret, so several
/// layers are tested: without jitter all would state 60.
#[tokio::test]
async fn a_refusals_wait_is_the_one_that_is_sent() {
    let mut waits = Vec::new();
    for _ in 0..20 {
        let limits = limit("p", Gcra::new(Rate::per_minute(1)).burst(1)).by(Constant);
        let layer = ThrottleLayer::new(limits).unwrap().retry_jitter(100).response(|refusal| {
            let wait = refusal.retry_after().unwrap().as_micros().div_ceil(1_000_000);
            Response::builder().status(refusal.status).body(wait.to_string().into()).unwrap()
        });
        let service = layer.backend(memory()).unwrap().layer(Strict::default());
        service.clone().oneshot(get()).await.unwrap();
        let refused = service.oneshot(get()).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let header = refused.headers()["retry-after"].to_str().unwrap().to_owned();
        assert_eq!(text(refused).await, header);
        waits.push(header.parse::<u64>().unwrap());
    }
    assert!(waits.iter().all(|wait| (60..=120).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait != 60), "{waits:?}");
}
