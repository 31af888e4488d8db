//! What the link learns from answers that a test gives by hand.

use super::connection::by_hand::{ByHand, fault};
use super::*;

const DEADLINE: Duration = Duration::from_millis(100);

async fn connected(threshold: u32) -> (ByHand, Arc<Link>, Arc<LiveConnection>) {
    let store = ByHand::default();
    let link = Link::new(Box::new(store.clone()), DEADLINE, threshold);
    store.connect(Ok(())).await;
    let live = link.current.load_full().expect("a connection");
    (store, link, live)
}

#[tokio::test(start_paused = true)]
async fn inside_a_runtime_the_connection_is_opened_before_the_first_request() {
    let store = ByHand::default();
    let _link = Link::new(Box::new(store.clone()), DEADLINE, 1);
    assert_eq!(store.connecting().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_deadline_has_passed_is_not_sent() {
    let (store, link, live) = connected(1).await;
    let sent = link.send(&live, (0, b"key"), Command::new("GET"), Instant::now()).await;
    assert!(matches!(sent, Err(CallError::TooLate)) && store.is_idle().await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_other_commands_has_more_time_for_one() {
    for answers in [true, false] {
        let (store, link, live) = connected(1).await;
        let send = |name: &'static [u8]| {
            let (link, live, until) = (Arc::clone(&link), Arc::clone(&live), Instant::now() + DEADLINE);
            tokio::spawn(async move { link.send(&live, (0, name), Command::new("GET"), until).await })
        };
        let (slow, quick) = (send(b"slow"), send(b"quick"));
        let (_unanswered, other) = (store.next().await, store.next().await);
        tokio::time::sleep(DEADLINE / 2).await;
        if answers {
            other.answer(Ok(Reply::Nil)).await;
            assert!(quick.await.expect("no panic").is_ok());
        }
        assert!(matches!(slow.await.expect("no panic"), Err(CallError::Late)));
        tokio::time::sleep(DEADLINE / 2).await;
        assert_eq!(link.is_healthy(), answers);
        tokio::time::sleep(4 * DEADLINE).await;
        assert!(!link.is_healthy(), "the command is late whatever else is answered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_a_replaced_connection_leaves_the_new_one_alone() {
    let (store, link, first) = connected(100).await;
    let broken = CallError::Fault(fault(FaultKind::Lost));
    link.learn(0, b"key", Some(&first), Err(&broken));
    assert!(!link.is_connected());
    tokio::time::sleep(Duration::from_millis(200)).await;
    store.connect(Ok(())).await;
    link.learn(0, b"key", Some(&first), Err(&broken));
    assert!(link.is_connected());
    let second = link.current.load_full().expect("a connection");
    link.learn(0, b"key", Some(&second), Err(&broken));
    assert!(!link.is_connected());
}
