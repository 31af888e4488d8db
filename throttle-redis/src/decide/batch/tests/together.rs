//! What decisions in one call have in common: its size, its room, its outcome. Their deadlines are
//! their own.

use super::*;
use crate::link::connection::FaultKind;
use crate::link::tests::by_hand::fault;

/// Six calls are under way; each that ends makes room for the next.
#[tokio::test(start_paused = true)]
async fn a_call_that_ends_starts_the_next() {
    let fixture = Fixture::of(logs(10_000), 1_024).connect().await;
    fixture.waiting().start(1, Instant::now() + HOUR);
    fixture.waiting().is_busy = true;
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let begun = begin_together(&fixture, &keys, 500 * MS);
    turns().await;
    let mut answered = 0;
    while !fixture.store.is_idle().await {
        assert!(fixture.waiting().in_flight.len() <= CALLS_IN_FLIGHT);
        fixture.store.next().await.admit().await;
        answered += 1;
    }
    assert_eq!(answered, keys.len());
    for begun in begun {
        assert!(begun.await.expect("no panic").is_ok());
    }
}

/// The server dies while they are under way, or there is no server.
#[tokio::test(start_paused = true)]
async fn every_decision_of_a_call_gets_the_error_of_the_call() {
    for connected in [true, false] {
        let fixture = Fixture::unconnected();
        let fixture = if connected {
            fixture.connect().await
        } else {
            fixture
        };
        fixture.occupy(Instant::now() + HOUR);
        let mut begun = Vec::new();
        for key in ["a", "b", "c"] {
            begun.push(fixture.begin(key, 500 * MS).await);
        }
        fixture.free();
        let kind = if connected {
            let sent = fixture.store.next().await;
            assert_eq!(sent.keys().len(), 3);
            sent.answer(Err(fault(FaultKind::Lost))).await;
            FaultKind::Lost
        } else {
            turns().await;
            fixture.store.connect(Err(fault(FaultKind::NotSent))).await;
            FaultKind::NotSent
        };
        for begun in begun {
            let error = begun.await.expect("no panic").err().expect("no decision");
            assert!(
                matches!(&error, CallError::Fault(fault) if *fault.kind() == kind),
                "{error:?}"
            );
        }
        assert_eq!(
            fixture.backend.stats().breaker_openings,
            1,
            "one call has failed"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_whose_time_is_up_while_its_call_is_under_way_may_be_charged() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let soon = fixture.begin("soon", 50 * MS).await;
    let later = fixture.begin("later", 90 * MS).await;
    fixture.free();
    let sent = fixture.store.next().await;
    assert_eq!(sent.keys().len(), 2);
    assert!(matches!(
        soon.await.expect("no panic"),
        Err(CallError::Late)
    ));
    sent.admit().await;
    assert!(later.await.expect("no panic").is_ok());
}

/// The store answers, so a limit is a limit: a full burst must not end in errors of the protocol.
#[tokio::test(start_paused = true)]
async fn law_13_late_answer_that_asks_for_another_call_is_a_timeout() {
    for kind in [
        FaultKind::NoScript,
        FaultKind::Moved(None),
        FaultKind::Ask(None),
    ] {
        let fixture = Fixture::connected().await;
        fixture.occupy(Instant::now() + HOUR);
        let begun = fixture.begin("ada", 100 * MS).await;
        fixture.free();
        let sent = fixture.store.next().await;
        // The caller leaves its call a little time beyond the deadline.
        advance(102 * MS).await;
        turns().await;
        sent.answer(Err(fault(kind))).await;
        let ended = begun.await.expect("no panic");
        assert!(matches!(ended, Err(CallError::TooLate)));
    }
}

/// The future of a decision may be dropped at any point.
#[tokio::test(start_paused = true)]
async fn a_decision_whose_caller_is_gone_is_not_sent() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let gone = fixture.begin("gone", 500 * MS).await;
    let kept = fixture.begin("kept", 500 * MS).await;
    gone.abort();
    turns().await;
    fixture.free();
    let sent = fixture.store.next().await;
    assert_eq!(sent.keys(), [name("kept")]);
    sent.admit().await;
    assert!(kept.await.expect("no panic").is_ok());
}

/// The room is for the work of all decisions. Meanwhile one of them is given up, and one runs out
/// of time.
#[tokio::test(start_paused = true)]
async fn a_call_waits_for_room_for_all_of_its_decisions() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let mut begun = Vec::new();
    for (key, time) in [("gone", 500), ("soon", 50), ("a", 500), ("b", 500)] {
        begun.push(fixture.begin(key, time * MS).await);
    }
    let (room, work) = (
        &fixture.backend.shared.links.of(0).room,
        fixture.ask("a").work(),
    );
    let all = room.take_now(u32::MAX).expect("nothing is under way");
    let most = u32::try_from(all.num_permits()).expect("a small number");
    drop(all);
    let held = room
        .take_now(most - 2 * work)
        .expect("nothing is under way");
    fixture.free();
    assert!(
        fixture.store.is_idle().await,
        "there is room for two of four"
    );
    begun.remove(0).abort();
    assert!(matches!(
        begun.remove(0).await.expect("no panic"),
        Err(CallError::Expired)
    ));
    drop(held);
    let sent = fixture.store.next().await;
    assert_eq!(sent.keys(), ["a", "b"].map(name));
    sent.admit().await;
    for begun in begun {
        assert!(begun.await.expect("no panic").is_ok());
    }
}

/// The wait for the connection knows what was missing until the deadline.
#[tokio::test(start_paused = true)]
async fn a_decision_that_waits_for_a_connection_in_vain_is_told_so() {
    let fixture = Fixture::unconnected();
    fixture.occupy(Instant::now() + HOUR);
    let begun = fixture.begin("ada", 100 * MS).await;
    fixture.free();
    assert!(matches!(
        begun.await.expect("no panic"),
        Err(CallError::TooLate)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_decision_whose_caller_goes_while_it_waits_for_room_is_not_sent() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let gone = fixture.begin("gone", 500 * MS).await;
    let link = fixture.backend.shared.links.of(0);
    let all = link.room.take_now(u32::MAX).expect("nothing is under way");
    fixture.free();
    turns().await;
    gone.abort();
    turns().await;
    drop(all);
    assert!(fixture.store.is_idle().await);
    assert_eq!(fixture.waiting().in_flight.len(), 1, "the call has ended");
}

/// Their callers still wait for a moment, and a call is made up in that moment.
#[tokio::test(start_paused = true)]
async fn no_decision_whose_time_is_up_travels_with_the_others() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let overdue = [
        fixture.begin("a", 100 * MS).await,
        fixture.begin("b", 100 * MS).await,
    ];
    let kept = fixture.begin("c", 500 * MS).await;
    advance(100 * MS).await;
    fixture.free();
    let sent = fixture.store.next().await;
    assert_eq!(sent.keys(), [name("c")]);
    for overdue in overdue {
        assert!(matches!(
            overdue.await.expect("no panic"),
            Err(CallError::Expired)
        ));
    }
    sent.admit().await;
    assert!(kept.await.expect("no panic").is_ok());
}

/// The thread was busy when the deadline passed, and the callers still wait.
#[tokio::test(start_paused = true)]
async fn an_answer_that_has_arrived_counts_even_when_the_deadline_has_passed() {
    for times in [[100, 100], [98, 100], [100, 104]] {
        let fixture = Fixture::connected().await;
        fixture.occupy(Instant::now() + HOUR);
        let begun = [
            fixture.begin("a", times[0] * MS).await,
            fixture.begin("b", times[1] * MS).await,
        ];
        fixture.free();
        let sent = fixture.store.next().await;
        assert_eq!(sent.keys().len(), 2);
        sent.admit_unread();
        advance(102 * MS).await;
        for begun in begun {
            assert!(begun.await.expect("no panic").is_ok(), "{times:?}");
        }
    }
}
