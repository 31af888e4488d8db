//! What the link learns from answers that a test gives by hand.

pub(crate) mod by_hand;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::connection::{Command, FaultKind, Reply};
use super::tests::by_hand::{ByHand, fault, turns};
use super::*;
use crate::breaker::Failure;
use crate::link::call_error::CallError;
use crate::link::in_use::LOOK_AGAIN;
use crate::link::learn::NO_ANSWER;

const DEADLINE: Duration = Duration::from_millis(100);

async fn connected(threshold: u32) -> (ByHand, Arc<Link>, Arc<LiveConnection>) {
    connected_to(ByHand::default(), threshold).await
}

async fn connected_to(store: ByHand, threshold: u32) -> (ByHand, Arc<Link>, Arc<LiveConnection>) {
    let link = by_hand::link(&store, DEADLINE.into(), threshold);
    store.connect(Ok(())).await;
    let live = link.current.load_full().expect("a connection");
    (store, link, live)
}

/// Sends a command in a task of its own.
fn sending(
    link: &Arc<Link>,
    live: &Arc<LiveConnection>,
    key: &'static [u8],
    within: Duration,
) -> JoinHandle<Result<Reply, CallError>> {
    let (link, live, until) = (Arc::clone(link), Arc::clone(live), Instant::now() + within);
    tokio::spawn(async move {
        link.send(&live, key, Command::new("GET"), Instant::now(), until, None)
            .await
    })
}

#[tokio::test(start_paused = true)]
async fn inside_a_runtime_the_connection_is_opened_before_the_first_request() {
    let store = ByHand::default();
    let link = by_hand::link(&store, DEADLINE.into(), 1);
    assert_eq!(store.connecting().await, 1);
    assert!(!link.is_healthy(), "there is no connection yet");
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_deadline_has_passed_is_not_sent() {
    let (store, link, live) = connected(1).await;
    let sent = link
        .send(
            &live,
            b"key",
            Command::new("GET"),
            Instant::now(),
            Instant::now(),
            None,
        )
        .await;
    assert!(matches!(sent, Err(CallError::TooLate)) && store.is_idle().await);
    let called = live.call(Command::new("GET"), Instant::now()).await;
    assert!(matches!(called, Err(CallError::TooLate)) && store.is_idle().await);
    let called = live
        .call(Command::new("GET"), Instant::now() + DEADLINE)
        .await;
    assert!(matches!(called, Err(CallError::Late)), "it was sent");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_other_commands_has_more_time_for_one() {
    use FaultKind::{Moved, NoScript, OutOfMemory};
    let errors = [NoScript, Moved(None), OutOfMemory].map(|kind| Some(Err(fault(kind))));
    for answer in [None, Some(Ok(Reply::Nil))].into_iter().chain(errors) {
        let (store, link, live) = connected(1).await;
        let send = |key| sending(&link, &live, key, DEADLINE);
        let (slow, quick) = (send(b"slow"), send(b"quick"));
        let (_unanswered, other) = (store.next().await, store.next().await);
        tokio::time::sleep(DEADLINE / 2).await;
        if let Some(answer) = answer.clone() {
            let is_ok = answer.is_ok();
            other.answer(answer).await;
            assert_eq!(quick.await.expect("no panic").is_ok(), is_ok);
        }
        assert!(matches!(
            slow.await.expect("no panic"),
            Err(CallError::Late)
        ));
        tokio::time::sleep(DEADLINE / 2).await;
        assert_eq!(link.is_healthy(), answer.is_some(), "{answer:?}");
        tokio::time::sleep(4 * DEADLINE).await;
        assert!(
            !link.is_healthy(),
            "the command is late whatever else is answered"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_a_replaced_connection_leaves_the_new_one_alone() {
    let (store, link, first) = connected(100).await;
    let broken = CallError::Fault(fault(FaultKind::Lost));
    link.learn(b"key", Some(&first), Err(&broken));
    assert!(!link.is_connected());
    tokio::time::sleep(Duration::from_millis(200)).await;
    store.connect(Ok(())).await;
    link.learn(b"key", Some(&first), Err(&broken));
    assert!(link.is_connected());
    let second = link.current.load_full().expect("a connection");
    link.learn(b"key", Some(&second), Err(&broken));
    assert!(!link.is_connected());
}

#[tokio::test(start_paused = true)]
async fn requests_learn_that_the_first_connection_cannot_be_opened() {
    let store = ByHand::default();
    let link = by_hand::link(&store, DEADLINE.into(), 1);
    let waiting = Arc::clone(&link);
    let waiting = tokio::spawn(async move {
        waiting
            .live_for(b"key", Instant::now(), Instant::now() + 9 * DEADLINE)
            .await
    });
    let began = Instant::now();
    store.connect(Err(fault(FaultKind::NotSent))).await;
    let Err(CallError::Fault(fault)) = waiting.await.expect("no panic") else {
        panic!("there is a connection")
    };
    assert_eq!(
        (fault.kind(), fault.to_string().as_str()),
        (&FaultKind::NotSent, "there is no connection: by hand")
    );
    assert!(
        began.elapsed() < DEADLINE,
        "it does not wait for the next attempt"
    );
    assert_eq!(
        link.counters.read().breaker_openings,
        1,
        "a failure of the store"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_the_first_connection_until_its_deadline() {
    for opens in [true, false] {
        let store = ByHand::default();
        let link = by_hand::link(&store, DEADLINE.into(), 1);
        let waiting = Arc::clone(&link);
        let waiting =
            tokio::spawn(async move { waiting.live(Instant::now() + 3 * LOOK_AGAIN / 2).await });
        turns().await;
        tokio::time::sleep(LOOK_AGAIN + Duration::from_millis(1)).await;
        if opens {
            store.connect(Ok(())).await;
        }
        let began = Instant::now();
        match waiting.await.expect("no panic") {
            Ok(_) => assert!(opens && began.elapsed().is_zero()),
            Err(error) => assert!(!opens && matches!(error, CallError::TooLate), "{error:?}"),
        }
    }
}

/// What an answer shows that arrives after its caller's deadline, but within the store's.
#[tokio::test(start_paused = true)]
async fn an_answer_that_its_caller_does_not_wait_for_is_a_success_or_a_failure() {
    use FaultKind::{Lost, Moved, NoScript, NotNow, OutOfMemory, Script};
    let faults = [
        (NoScript, false),
        (Moved(None), false),
        (NotNow, false),
        (Script, false),
        (OutOfMemory, true),
    ];
    let faults = faults.map(|(kind, fails)| (Err(fault(kind)), fails, true));
    for (answer, fails, keeps) in faults.into_iter().chain([
        (Ok(Reply::Nil), false, true),
        (Err(fault(Lost)), true, false),
    ]) {
        let (store, link, live) = connected(2).await;
        link.fail(b"key", Failure::Fault, "the first of two");
        let sent = link
            .send(
                &live,
                b"key",
                Command::new("GET"),
                Instant::now(),
                Instant::now() + DEADLINE / 10,
                None,
            )
            .await;
        assert!(matches!(sent, Err(CallError::Late)));
        store.next().await.answer(answer.clone()).await;
        assert_eq!(
            link.counters.read().breaker_openings,
            u64::from(fails),
            "{answer:?}"
        );
        assert_eq!(link.is_connected(), keeps, "{answer:?}");
        link.fail(b"key", Failure::Fault, "one more");
        assert_eq!(
            link.counters.read().breaker_openings,
            u64::from(fails),
            "a success begins the count anew"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_overdue_only_while_there_is_a_connection_and_no_error() {
    for (error, lost, overdue) in [
        (false, false, true),
        (true, false, false),
        (false, true, false),
    ] {
        let (_store, link, live) = connected(1).await;
        if error {
            link.learn(
                b"key",
                None,
                Err(&CallError::Fault(fault(FaultKind::Other))),
            );
        } else {
            link.fail(b"key", Failure::Late, NO_ANSWER);
        }
        if lost {
            link.drop_connection(&live);
        }
        let refused = link.permission().expect_err("the breaker is open");
        assert_eq!(
            matches!(refused, CallError::Overdue),
            overdue,
            "{refused:?}"
        );
        assert!(
            overdue || matches!(refused, CallError::Suspended),
            "{refused:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn fault_of_a_connection_or_replica_drops_the_connection() {
    use FaultKind::{
        Ask, Lost, Moved, NoScript, NotNow, NotSent, Other, OutOfMemory, ReadOnly, Refused, Script,
        SlotNotNow,
    };

    for (kind, drops) in [
        (NotSent, true),
        (Lost, true),
        (ReadOnly, true),
        (NoScript, false),
        (Moved(None), false),
        (Ask(None), false),
        (NotNow, false),
        (SlotNotNow, false),
        (OutOfMemory, false),
        (Refused, false),
        (Script, false),
        (Other, false),
    ] {
        let (_store, link, live) = connected(100).await;
        let error = CallError::Fault(fault(kind.clone()));
        link.learn(b"key", Some(&live), Err(&error));
        assert_eq!(link.is_connected(), !drops, "{kind:?}");
    }
}

/// A single server that redirects is of no use; one of a cluster decides about other slots.
#[tokio::test(start_paused = true)]
async fn law_13_an_answer_about_a_slot_is_no_failure_of_a_server_of_a_cluster() {
    use FaultKind::{Ask, Moved, NotNow, SlotNotNow};
    for (kind, fails_on_a_cluster) in [
        (Moved(None), false),
        (Ask(None), false),
        (SlotNotNow, false),
        (NotNow, true),
    ] {
        for (store, fails) in [
            (ByHand::default(), true),
            (ByHand::cluster(), fails_on_a_cluster),
        ] {
            let (_store, link, live) = connected_to(store, 1).await;
            let error = CallError::Fault(fault(kind.clone()));
            link.learn(b"key", Some(&live), Err(&error));
            assert_eq!(link.permission().is_err(), fails, "{kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn errors_that_say_nothing_about_the_server_are_no_failures() {
    let (_store, link, live) = connected(1).await;
    for error in [
        CallError::Late,
        CallError::TooLate,
        CallError::Expired,
        CallError::Suspended,
        CallError::Overdue,
        CallError::Saturated,
        CallError::Malformed("makes no sense"),
    ] {
        link.learn(b"key", Some(&live), Err(&error));
        assert!(link.is_healthy(), "{error:?}");
    }
    link.learn(
        b"key",
        Some(&live),
        Err(&CallError::Fault(fault(FaultKind::Refused))),
    );
    assert!(!link.is_healthy());
}

/// A hundred requests that find the connection ended share the next one.
#[tokio::test(start_paused = true)]
async fn law_13_decisions_wait_for_the_connection_that_replaces_an_ended_one() {
    let (store, link, live) = connected(1).await;
    store.end_connection();
    assert!(
        !link.is_connected() && !link.is_healthy(),
        "it is noticed when it comes"
    );
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let link = Arc::clone(&link);
            tokio::spawn(async move {
                link.live_for(b"key", Instant::now(), Instant::now() + DEADLINE)
                    .await
            })
        })
        .collect();
    tokio::time::sleep(DEADLINE / 2).await;
    assert_eq!(store.connecting().await, 1);
    store.connect(Ok(())).await;
    for waiting in waiting {
        let next = waiting.await.expect("no panic").expect("a connection");
        assert_ne!(next.generation, live.generation);
    }
    assert!(link.is_healthy());
}

#[tokio::test(start_paused = true)]
async fn law_13_a_command_that_was_not_sent_is_sent_by_the_next_connection_once() {
    let (store, link, live) = connected(1).await;
    let connect = async |answer| {
        tokio::time::sleep(DEADLINE / 2).await;
        store.connect(answer).await;
    };
    let next = link.next_after(&live, Instant::now() + DEADLINE);
    let (next, ()) = tokio::join!(next, connect(Ok(())));
    assert!(next.is_some_and(|next| next.generation != live.generation));
    let next = link.current.load_full().expect("a connection");
    let refused = link.next_after(&next, Instant::now() + DEADLINE);
    let (refused, ()) = tokio::join!(refused, connect(Err(fault(FaultKind::NotSent))));
    assert!(refused.is_none());
}

#[tokio::test(start_paused = true)]
async fn law_13_silent_connection_is_replaced_while_requests_wait() {
    for heals in [true, false] {
        let (store, link, live) = connected(1).await;
        let silent = sending(&link, &live, b"key", DEADLINE);
        let _unanswered = store.next().await;
        assert!(matches!(
            silent.await.expect("no panic"),
            Err(CallError::Late)
        ));
        turns().await;
        assert_eq!(link.counters.read().breaker_openings, 1);
        assert!(
            link.permission().is_ok() && !link.is_healthy(),
            "the next connection may work"
        );
        let waiting = Arc::clone(&link);
        let waiting = tokio::spawn(async move { waiting.live(Instant::now() + DEADLINE).await });
        store
            .connect(if heals {
                Ok(())
            } else {
                Err(fault(FaultKind::NotSent))
            })
            .await;
        let next = waiting.await.expect("no panic").expect("a connection");
        assert_eq!(
            (next.generation != live.generation, link.is_healthy()),
            (heals, heals)
        );
        assert_eq!(
            matches!(link.permission(), Err(CallError::Overdue)),
            !heals,
            "the store stays busy"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_something_arrives_is_not_silent() {
    let (store, link, live) = connected(100).await;
    let (slow, quick) = (
        sending(&link, &live, b"slow", DEADLINE),
        sending(&link, &live, b"quick", DEADLINE),
    );
    let (_unanswered, other) = (store.next().await, store.next().await);
    tokio::time::sleep(DEADLINE / 2).await;
    other.answer(Ok(Reply::Nil)).await;
    assert!(quick.await.expect("no panic").is_ok());
    assert!(matches!(
        slow.await.expect("no panic"),
        Err(CallError::Late)
    ));
    assert_eq!(store.connecting().await, 0);
    assert!(link.is_healthy());
}

/// A slow store is not at fault for its connection, and is not asked for ever.
#[tokio::test(start_paused = true)]
async fn law_12_store_that_is_silent_on_two_connections_opens_the_breaker() {
    let (store, link, live) = connected(2).await;
    let late = async |live: &Arc<LiveConnection>| {
        let sent = sending(&link, live, b"key", DEADLINE);
        let unanswered = store.next().await;
        assert!(matches!(
            sent.await.expect("no panic"),
            Err(CallError::Late)
        ));
        turns().await;
        unanswered
    };
    let _first = late(&live).await;
    tokio::time::sleep(DEADLINE).await;
    store.connect(Ok(())).await;
    let next = link.current.load_full().expect("a connection");
    assert!(next.generation != live.generation && link.is_healthy());
    let _second = late(&next).await;
    assert!(
        store.connecting().await == 0 && link.is_connected(),
        "another one would not help"
    );
    let _third = late(&next).await;
    assert_eq!(link.counters.read().breaker_openings, 1);
    assert!(matches!(link.permission(), Err(CallError::Overdue)));
}
