//! When calls start, and in which runtime.

use super::*;

fn standing_still() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

#[tokio::test(start_paused = true)]
async fn the_runtime_of_the_last_decision_sends_the_queue() {
    let fixture = Fixture::connected().await;
    let still = standing_still();
    fixture.waiting().start(1, Instant::now() + HOUR);
    fixture.waiting().is_busy = true;
    fixture.waiting().runtime = Some(still.handle().clone());
    let _begun = fixture.begin("ada", 500 * MS).await;
    assert_eq!(fixture.store.next().await.keys(), [name("ada")]);
    still.shutdown_background();
}

/// Whichever runtime asked last, the one that sends a call is running.
#[tokio::test(start_paused = true)]
async fn the_runtime_that_sends_a_call_sends_what_is_left_in_the_queue() {
    let fixture = Fixture::of(logs(10_000), 1_024).connect().await;
    let still = standing_still();
    fixture.waiting().start(1, Instant::now() + HOUR);
    fixture.waiting().is_busy = true;
    let (shared, until) = (&fixture.backend.shared, Instant::now() + HOUR);
    let enqueue = |key: &str| {
        fixture
            .set
            .batcher
            .enqueue(shared, &fixture.ask(key), until)
    };
    let _queued = ["a", "b", "c"].map(enqueue);
    fixture.waiting().runtime = Some(still.handle().clone());
    let mut keys = Vec::new();
    for _ in 0..3 {
        let sent = fixture.store.next().await;
        keys.extend(sent.keys());
        sent.admit().await;
    }
    keys.sort();
    assert_eq!(keys, ["a", "b", "c"].map(name));
    still.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_never_ran_leaves_the_call_to_the_next_decision_at_once() {
    let fixture = Fixture::connected().await;
    let still = standing_still();
    fixture.occupy(Instant::now() + HOUR);
    let first = fixture.begin("first", 500 * MS).await;
    {
        let mut waiting = fixture.waiting();
        waiting.in_flight.truncate(1);
        waiting.runtime = Some(still.handle().clone());
        spawn_start(
            &fixture.backend.shared,
            &fixture.set.batcher.0,
            waiting,
            TaskSpawner::Caller,
        );
    }
    assert!(fixture.waiting().starting.is_some() && fixture.store.is_idle().await);
    still.shutdown_background();
    turns().await;
    let second = fixture.begin("second", 500 * MS).await;
    let sent = fixture.store.next().await;
    assert_eq!(sent.keys(), ["first", "second"].map(name));
    sent.admit().await;
    assert!(first.await.expect("no panic").is_ok() && second.await.expect("no panic").is_ok());
}

/// A full queue of a runtime that stands still would refuse every decision of the others, for ever.
#[tokio::test(start_paused = true)]
async fn a_full_queue_of_a_runtime_that_stands_still_is_sent_by_the_next_one() {
    for is_about_to_start in [false, true] {
        let fixture = Fixture::of(limit(9), 2).connect().await;
        let still = standing_still();
        fixture.occupy(Instant::now());
        let _queued = [
            fixture.begin("a", 1 * MS).await,
            fixture.begin("b", 1 * MS).await,
        ];
        {
            let mut waiting = fixture.waiting();
            waiting.runtime = Some(still.handle().clone());
            if is_about_to_start {
                waiting.in_flight.clear();
                waiting.starting = Some(Instant::now() + GRACE);
            }
        }
        advance(2 * GRACE).await;
        let refused = fixture.begin("c", 500 * MS).await.await.expect("no panic");
        assert!(matches!(refused, Err(CallError::Saturated)));
        let _served = fixture.begin("d", 500 * MS).await;
        assert_eq!(
            fixture.store.next().await.keys(),
            [name("d")],
            "the queue was cleared meanwhile"
        );
        still.shutdown_background();
    }
}

/// The caller of the call that has ended may go on for long before its thread runs the task.
#[tokio::test(start_paused = true)]
async fn a_call_that_ends_keeps_no_later_decision_waiting_for_its_thread() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let _queued = fixture.begin("ada", 500 * MS).await;
    let (shared, batcher) = (
        Arc::clone(&fixture.backend.shared),
        Arc::clone(&fixture.set.batcher.0),
    );
    let number = fixture.waiting().in_flight[0].number;
    drop(BatchCall {
        shared,
        batcher,
        number: Some(number),
    });
    assert_eq!(fixture.waiting().starting, None);
    assert_eq!(fixture.store.next().await.keys(), [name("ada")]);
}

/// Such a runtime drops the task at once, on the thread that spawns it.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_shutting_down_leaves_the_call_to_the_next_decision() {
    let fixture = Fixture::connected().await;
    fixture.occupy(Instant::now() + HOUR);
    let queued = fixture.set.batcher.enqueue(
        &fixture.backend.shared,
        &fixture.ask("ada"),
        Instant::now() + HOUR,
    );
    assert!(matches!(queued, Ok(EnqueueResult::Queued(..))));
    let gone = standing_still();
    fixture.waiting().runtime = Some(gone.handle().clone());
    fixture.waiting().in_flight.truncate(1);
    gone.shutdown_background();
    let (shared, batcher) = (
        Arc::clone(&fixture.backend.shared),
        Arc::clone(&fixture.set.batcher.0),
    );
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        spawn_start(&shared, &batcher, batcher.lock(), TaskSpawner::Caller);
        let _ = done.send(());
    });
    let end = ended.recv_timeout(Duration::from_secs(10));
    assert_eq!(
        end,
        Ok(()),
        "Timeout: it waits for a lock that it holds; Disconnected: it panicked"
    );
    assert!(fixture.waiting().starting.is_none() && fixture.waiting().runtime.is_none());
}
