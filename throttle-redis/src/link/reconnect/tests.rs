//! What a broken link does, on answers that a test gives by hand.

use tokio::time::sleep;

use super::*;
use crate::link::connection::Reply;
use crate::link::tests::by_hand::{self, ByHand, fault, turns};
use crate::link::{CONNECT, CORRECTION, Deadlines};

const DEADLINE: Duration = Duration::from_millis(100);
const KEY: &[u8] = b"key";

fn link(store: &ByHand) -> Arc<Link> {
    by_hand::link(store, DEADLINE.into(), 1)
}

/// A connected link whose store has failed about a key.
async fn failed(store: &ByHand) -> Arc<Link> {
    let link = link(store);
    store.connect(Ok(())).await;
    assert!(link.is_healthy());
    link.learn(KEY, None, Err(&CallError::Fault(fault(FaultKind::Other))));
    assert!(!link.is_healthy());
    link
}

#[tokio::test(start_paused = true)]
async fn a_server_is_asked_about_the_key_that_failed_last() {
    let store = ByHand::default();
    let link = failed(&store).await;
    for name in ["key", "other"] {
        let sent = store.later().await;
        let key = ["1".to_owned(), format!("{name} ")];
        assert_eq!(
            (&sent.words()[0][..], &sent.words()[2..]),
            ("EVALSHA", &key[..])
        );
        sent.answer(Err(fault(FaultKind::NoScript))).await;
        let sent = store.next().await;
        assert_eq!(
            (&sent.words()[0][..], &sent.words()[2..]),
            ("EVAL", &key[..])
        );
        assert!(
            !link.is_healthy(),
            "a script that is missing is no decision"
        );
        sent.answer(Ok(Reply::Bytes(b"A".to_vec()))).await;
        assert!(link.is_healthy());
        link.learn(
            b"other",
            None,
            Err(&CallError::Fault(fault(FaultKind::Other))),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_sign_of_life_is_replaced_after_some_time() {
    let store = ByHand::default();
    let link = failed(&store).await;
    store
        .later()
        .await
        .answer(Err(fault(FaultKind::Other)))
        .await;
    assert!(!link.is_healthy());
    store.connect(Ok(())).await;
    let opened = Instant::now();
    while store.connecting().await == 0 {
        assert!(opened.elapsed() < 4 * YOUNG, "it is never replaced");
        if store.is_idle().await {
            sleep(Duration::from_millis(10)).await;
        } else {
            store
                .next()
                .await
                .answer(Err(fault(FaultKind::Other)))
                .await;
        }
    }
    assert!(opened.elapsed() > YOUNG);
    assert_eq!(link.counters.read().connections, 2);
}

#[tokio::test(start_paused = true)]
async fn attempts_to_connect_pause() {
    let store = ByHand::default();
    let link = link(&store);
    let (began, mut attempts) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(3) && attempts < 50 {
        if store.connecting().await > 0 {
            attempts += 1;
            store.connect(Err(fault(FaultKind::NotSent))).await;
        } else {
            sleep(Duration::from_millis(10)).await;
        }
    }
    assert!((8..=20).contains(&attempts), "{attempts} in three seconds");
    assert_eq!(link.counters.read().failed_connections, attempts);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_replaced_opens_no_connection() {
    let store = ByHand::default();
    let link = link(&store);
    turns().await;
    assert!(
        link.goes_on(2),
        "the next task takes over while the first one connects"
    );
    store.connect(Ok(())).await;
    assert!(!link.is_connected() && link.counters.read().connections == 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_replaced_while_it_asked_for_a_sign_of_life_ends() {
    let store = ByHand::default();
    let link = failed(&store).await;
    let sent = store.later().await;
    assert!(link.goes_on(99), "another task takes over");
    sent.answer(Err(fault(FaultKind::Other))).await;
    assert_eq!(store.connecting().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_is_asked_for_a_sign_of_life_at_once() {
    let store = ByHand::default();
    let link = failed(&store).await;
    store
        .later()
        .await
        .answer(Err(fault(FaultKind::Other)))
        .await;
    store.connect(Ok(())).await;
    store.next().await.answer(Ok(Reply::Nil)).await;
    assert!(link.is_healthy());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_to_connect_is_given_up_after_the_connect_timeout() {
    for limit in [CONNECT, Duration::from_secs(7)] {
        let store = ByHand::default();
        let times = Deadlines {
            decision: DEADLINE,
            correction: CORRECTION,
            connect: limit,
        };
        let link = by_hand::link(&store, times, 1);
        assert_eq!(store.connecting().await, 1);
        sleep(limit - Duration::from_millis(1)).await;
        link.reconnect();
        assert_eq!(store.connecting().await, 1, "the task is at work");
        assert_eq!(link.counters.read().failed_connections, 0);
        sleep(Duration::from_millis(2)).await;
        assert_eq!(
            link.counters.read().failed_connections,
            1,
            "after {limit:?}"
        );
    }
}

/// It decides about the slots that it has.
#[tokio::test(start_paused = true)]
async fn law_13_a_redirection_is_a_sign_of_life_of_a_server_of_a_cluster() {
    let home = || Some((by_hand::HOME.to_owned(), 1));
    for kind in [FaultKind::Moved(home()), FaultKind::Ask(home())] {
        for (store, is_alive) in [(ByHand::default(), false), (ByHand::cluster(), true)] {
            let link = failed(&store).await;
            store.later().await.answer(Err(fault(kind.clone()))).await;
            assert_eq!(link.is_healthy(), is_alive, "{kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_no_sign_of_life_and_refused_connection_is_kept() {
    for (kind, keeps) in [
        (FaultKind::NotNow, false),
        (FaultKind::Moved(None), false),
        (FaultKind::ReadOnly, false),
        (FaultKind::NotSent, false),
        (FaultKind::Refused, true),
        (FaultKind::OutOfMemory, true),
    ] {
        let store = ByHand::default();
        let link = failed(&store).await;
        let answer = Err(fault(kind.clone()));
        store.later().await.answer(answer).await;
        assert!(!link.is_healthy(), "{kind:?}");
        assert_eq!(store.connecting().await == 0, keeps, "{kind:?}");
    }
    let store = ByHand::default();
    let link = failed(&store).await;
    let _unanswered = store.later().await;
    sleep(DEADLINE + Duration::from_millis(1)).await;
    assert!(!link.is_healthy());
    assert_eq!(
        store.connecting().await,
        1,
        "after a deadline the connection is replaced"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_is_told_that_connecting_took_too_long() {
    let store = ByHand::default();
    let link = link(&store);
    let Err(CallError::Fault(fault)) = link.live(Instant::now() + 2 * CONNECT).await else {
        panic!("no connection")
    };
    assert_eq!(fault.kind(), &FaultKind::NotSent);
    assert_eq!(
        fault.to_string(),
        "there is no connection: connecting takes longer than connect_timeout, 1s"
    );
}
