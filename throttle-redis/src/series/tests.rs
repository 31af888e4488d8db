//! What is reported of breakers and waits that a test brings about by hand.

#[path = "../../tests/servers/metrics/recorded.rs"]
mod recorded;

use std::time::Duration;

use recorded::{Recorded, expected};
use throttle_core::backend::Call;
use throttle_core::{Backend, Gcra, Key, Policy, PolicySet, PolicyTree, Rate, Timestamp};

use super::*;
use crate::counters::Counters;
use crate::decide::set::RedisSet;
use crate::link::call_error::CallError;
use crate::link::connection::{Fault, FaultKind};
use crate::link::tests::by_hand::{ByHand, fault, turns};
use crate::links::Links;
use crate::{RedisBackend, RedisBuilder};

fn counters() -> Arc<Counters> {
    Counters::new(Some(Box::new(Series::new("api".to_owned()))))
}

fn links(store: &ByHand) -> Links {
    Links::new(
        Box::new(store.clone()),
        Duration::from_millis(100).into(),
        1,
        counters(),
    )
}

fn breakers(recorded: &Recorded) -> [i64; 3] {
    ["closed", "half_open", "open"].map(|state| recorded.value("api", &format!("breakers {state}")))
}

fn lost() -> CallError {
    CallError::Fault(fault(FaultKind::Lost))
}

async fn connected(
    store: &ByHand,
    builder: RedisBuilder,
    names: &[&str],
) -> (RedisBackend, Arc<RedisSet>) {
    let backend = builder.metrics("api").build().expect("valid options");
    store.connect(Ok(())).await;
    let policy = |name: &&str| {
        Policy::new(name, Gcra::new(Rate::per_minute(5)))
            .expect("a policy")
            .into()
    };
    let set = PolicySet::new(PolicyTree::All(names.iter().map(policy).collect())).expect("a set");
    let set = Arc::new(backend.prepare(set).expect("a set"));
    (backend, set)
}

/// Each of two servers has one, and so has the link that finds them.
#[tokio::test(start_paused = true)]
async fn each_breaker_of_a_cluster_is_in_one_state() {
    let recorded = Recorded::default();
    let _here = recorded.install();
    let store = ByHand::cluster();
    store.divide([(0, 99, "one"), (100, 16_383, "two")]);
    let links = links(&store);
    assert_eq!(breakers(&recorded), [1, 0, 0]);
    store.connect(Ok(())).await;
    assert_eq!(breakers(&recorded), [3, 0, 0]);
    for (slot, open) in [(0, 1), (16_383, 2), (16_382, 2)] {
        links.of(slot).learn(b"key", None, Err(&lost()));
        assert_eq!(breakers(&recorded), [3 - open, 0, open], "slot {slot}");
    }
    assert_eq!(recorded.value("api", "breaker_openings_total"), 2);
}

#[tokio::test(start_paused = true)]
async fn the_first_value_of_a_late_recorder_is_the_present_state() {
    let recorded = Recorded::default();
    let store = ByHand::cluster();
    let links = links(&store);
    store.connect(Ok(())).await;
    links.of(0).learn(b"key", None, Err(&lost()));
    let _here = recorded.install();
    assert!(recorded.series().is_empty());
    links.counters.count(crate::stats::Count::Decided);
    assert_eq!(
        recorded.of("api"),
        expected([
            ("decisions_total", 1),
            ("breakers closed", 1),
            ("breakers open", 1)
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_dropped_leaves_no_breaker_behind() {
    let recorded = Recorded::default();
    let store = ByHand::default();
    let never_seen = links(&store);
    let _here = recorded.install();
    drop(never_seen);
    assert!(
        recorded.series().is_empty(),
        "it does not register its series to take them away"
    );
    let seen = links(&store);
    assert_eq!(breakers(&recorded), [1, 0, 0]);
    drop(seen);
    assert_eq!(breakers(&recorded), [0, 0, 0]);
}

#[test]
fn decision_that_waited_before_the_recorder_leaves_the_gauge_alone() {
    let recorded = Recorded::default();
    let counters = counters();
    let early = counters.waiting();
    let _here = recorded.install();
    let late = counters.waiting();
    let waiting = || recorded.value("api", "waiting_decisions");
    assert_eq!(waiting(), 1);
    drop(early);
    assert_eq!(waiting(), 1);
    drop(late);
    assert_eq!(waiting(), 0);
}

/// Whether it would travel alone or in a batch, now or as of an instant.
#[tokio::test(start_paused = true)]
async fn a_decision_without_room_at_the_server_waits_until_it_is_sent() {
    for (max_batch, as_of) in [(64, None), (64, Some(Timestamp::EPOCH)), (1, None)] {
        let recorded = Recorded::default();
        let _here = recorded.install();
        let store = ByHand::default();
        let (backend, set) = connected(
            &store,
            RedisBackend::builder(store.clone()).max_batch(max_batch),
            &["p"],
        )
        .await;
        let waiting = || recorded.value("api", "waiting_decisions");
        let link = backend.shared.links.of(0);
        let share = set.shares.of(&link, 9);
        for room in [&link.room, &share.room] {
            // A batch has no share of its own.
            if max_batch > 1 && as_of.is_none() && std::ptr::eq(room, &share.room) {
                continue;
            }
            let all = room.take_now(u32::MAX).expect("nothing is under way");
            let calls = [Call::from(Key::from("ada"))];
            let deciding = tokio::spawn(match as_of {
                Some(at) => backend.decide_as_of(&set, &calls, at),
                None => backend.decide(&set, &calls),
            });
            turns().await;
            assert_eq!(
                (waiting(), store.is_idle().await),
                (1, true),
                "{max_batch}, {as_of:?}"
            );
            drop(all);
            let sent = store.next().await;
            assert_eq!(waiting(), 0, "{max_batch}, {as_of:?}");
            sent.admit().await;
            assert!(deciding.await.expect("no panic").is_ok());
        }
    }
}

#[test]
fn every_way_in_which_a_call_ends_has_its_own_result() {
    let recorded = Recorded::default();
    let _here = recorded.install();
    let counters = counters();
    let fault = |kind| CallError::Fault(Fault::new(kind, "by hand"));
    let ends = [
        (Ok(()), "ok"),
        (Err(CallError::Late), "late"),
        (Err(fault(FaultKind::Lost)), "fault"),
        (Err(fault(FaultKind::OutOfMemory)), "fault"),
        (Err(CallError::Divided), "fault"),
        (Err(fault(FaultKind::NotSent)), "unsent"),
        (Err(CallError::TooLate), "unsent"),
        (Err(CallError::Expired), "unsent"),
        (Err(CallError::Suspended), "unsent"),
        (Err(CallError::Overdue), "unsent"),
        (Err(CallError::Saturated), "unsent"),
        (Err(fault(FaultKind::NotNow)), "fault"),
        (Err(CallError::Malformed("makes no sense")), "malformed"),
        (
            Err(CallError::PartlyCharged(Box::new(CallError::Late))),
            "late",
        ),
    ];
    for (end, result) in ends {
        let name = format!("calls_total {result}");
        let before = recorded.value("api", &name);
        let mut call = counters.call(3);
        let shown = format!("{end:?}");
        assert_eq!(call.see(end).is_ok(), result == "ok");
        drop(call);
        assert_eq!(recorded.value("api", &name), before + 1, "{shown}");
    }
    drop(counters.call(3));
    assert_eq!(recorded.value("api", "calls_total abandoned"), 1);
    assert_eq!(recorded.value("api", "batch_decisions sum"), 45);
}
