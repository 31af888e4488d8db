//! Many calls of one key delay no other key.

use throttle_tower::OnError;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::{Layer, ServiceExt};

use crate::support::{MS, Notes, Remote, layer, over, ten, wait, waiting};

/// Nine keys with one call every 100 ms, which is their pace, beside one key with a thousand calls
/// at once.
#[tokio::test(start_paused = true)]
async fn shape_greedy_key_delays_no_other_key() {
    let notes = Notes::new();
    let service = layer(ten(3_600_000))
        .by(|call: &u64| (call / 10_000).into())
        .layer(notes.clone());
    let mut calls = JoinSet::new();
    for call in 0..1_000 {
        calls.spawn(service.clone().oneshot(call));
    }
    for key in 1..10_u64 {
        for call in 0..20 {
            let service = service.clone();
            calls.spawn(async move {
                tokio::time::sleep(call as u32 * 100 * MS).await;
                service.oneshot(key * 10_000 + call).await
            });
        }
    }
    calls
        .join_all()
        .await
        .into_iter()
        .for_each(|answer| assert!(answer.is_ok()));
    let others: Vec<_> = notes
        .calls()
        .into_iter()
        .filter(|(call, _)| *call >= 10_000)
        .collect();
    assert_eq!(others.len(), 180);
    for (call, at) in others {
        let due = (call % 10_000) as u32 * 100 * MS;
        assert!(
            at <= due + MS,
            "call {call} left at {at:?}, made at {due:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn shape_each_key_has_its_own_schedule_over_a_store() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(3_600_000), OnError::Closed);
    for key in 0..10_u64 {
        for _ in 0..3 {
            drop(waiting(&shaper, key).await);
        }
    }
    assert_eq!(wait(&shaper, 10_u64).await, 2 * MS);
    shaper.reset(3_u64).await.unwrap();
    sleep(4 * MS).await;
    // The first of each has left, and of that which was reset the second as well.
    assert_eq!((shaper.stats().sent, shaper.stats().waiting), (12, 19));
}
