//! Settles charges with actual usage.

use std::sync::Arc;

use throttle_core::backend::{Receipt, ReceiptItem};
use throttle_core::{DecidedBy, PolicySet};
use tokio::time::{Instant, timeout_at};

use super::call::head;
use super::set::RedisSet;
use crate::link::call_error::CallError;
use crate::links::script_call::ScriptCall;
use crate::script::prepared_set::PreparedSet;
use crate::script::reply::unexpected;
use crate::script::request::MOST;
use crate::script::server_work;
use crate::shared_backend::SharedBackend;
use crate::stats::Count;

/// Settlements that may be under way at one time, together with those that wait for room.
pub(crate) const MOST_SETTLEMENTS: usize = 65_536;

pub(crate) async fn settle(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    receipt: &Receipt,
) -> Result<(), CallError> {
    let settled = match shared.settlements.try_acquire() {
        Ok(_permit) => settle_by_slot(shared, set, receipt).await,
        Err(_) => Err(CallError::Saturated),
    };
    if settled.is_err() {
        shared.links.counters.count(Count::SettlingFailed);
    }
    settled
}

async fn settle_by_slot(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    receipt: &Receipt,
) -> Result<(), CallError> {
    // The store holds nothing of what was charged to the process's own share.
    let charged = receipt.items().iter();
    let charged = charged.filter(|item| item.decided_by() == DecidedBy::Store);
    let named = charged.filter_map(|item| {
        let policy = set.names.get(item.policy())?;
        Some((shared.keyspace.name(policy, item.key()), item))
    });
    let mut items: Vec<_> = named.collect();
    let slot = |item: &(Vec<u8>, &ReceiptItem)| shared.slot(&item.0);
    items.sort_by_key(slot);
    // The keys of a slot that moves may be at two servers.
    let may_share =
        |one: &_, other: &_| slot(one) == slot(other) && !shared.links.moving.contains(slot(one));
    // A server that fails must not prevent the charges of other slots from being settled.
    let mut settled = Ok(());
    for items in items.chunk_by(may_share) {
        settled = settled.and(settle_in_one_slot(shared, &set.prepared, items).await);
    }
    settled
}

async fn settle_in_one_slot(
    shared: &Arc<SharedBackend>,
    prepared: &PreparedSet,
    items: &[(Vec<u8>, &ReceiptItem)],
) -> Result<(), CallError> {
    let Some((first, _)) = items.first() else {
        return Ok(());
    };
    let slot = shared.slot(first);
    let link = shared.links.of(slot);
    let _permission = link.permission()?;
    // A settlement is not given up because many others wait: the units that it gives back would be
    // lost. Its deadline begins when it is sent.
    let work = items.iter().filter_map(|(_, item)| {
        let own = server_work::of_one(item.parameters(prepared.set.policies().get(item.policy())?));
        Some(own.max(*prepared.work.get(item.policy())?))
    });
    let work = work.sum();
    // Half of the room is left to decisions.
    let share = link.correction_room.take(work).await;
    let room = link.room.take(work).await;
    let now = Instant::now();
    let mut settling = Box::pin(settle_by(
        shared,
        prepared,
        items,
        slot,
        now + shared.links.deadlines.correction,
    ));
    if let Ok(settled) = timeout_at(now + shared.links.deadlines.decision, &mut settling).await {
        return settled;
    }
    // Decisions do not wait for an answer that is late.
    drop((room, share));
    settling.await
}

async fn settle_by(
    shared: &Arc<SharedBackend>,
    prepared: &PreparedSet,
    items: &[(Vec<u8>, &ReceiptItem)],
    slot: u16,
    until: Instant,
) -> Result<(), CallError> {
    let of = |policy| {
        items
            .iter()
            .map(|(_, item)| *item)
            .find(|item| item.policy() == policy)
    };
    let (script, names) = (&prepared.scripts.settle, || {
        items.iter().map(|(name, _)| name.as_slice())
    });
    let command = || {
        let mut command = head(shared, script, names, None, 5 * items.len());
        headers(&prepared.set, of).for_each(|header| command.push(header));
        items
            .iter()
            .flat_map(|(_, item)| words(item))
            .for_each(|word| command.push(word));
        command
    };
    let name = names().next().unwrap_or_default();
    let call = ScriptCall {
        script,
        slot,
        name,
        is_divisible: false,
        late: None,
        command,
    };
    // A request that was refused before the settlement may be admitted after it.
    let _forgetting = shared.shortcut.forgetting(|| names().collect());
    match call.run(&shared.links, until).await?.as_slice() {
        b"A" => Ok(()),
        reply => Err(unexpected(reply.first().copied())),
    }
}

/// One header for each policy: that of the parameters under which its charge was made, which `of`
/// returns by the policy's index.
pub(crate) fn headers<'a>(
    set: &'a PolicySet,
    of: impl Fn(usize) -> Option<&'a ReceiptItem> + 'a,
) -> impl Iterator<Item = Vec<u8>> + 'a {
    let policies = set.policies().iter().enumerate();
    policies.map(move |(index, policy)| {
        of(index)
            .map_or_else(|| policy.algorithm(), |item| item.parameters(policy))
            .tag()
    })
}

/// The policy, the mark of the charge, the units taken, and the units used.
pub(crate) fn words(item: &ReceiptItem) -> [String; 5] {
    let (at, frac) = item.mark();
    let policy = item.policy() + 1;
    [
        policy.to_string(),
        at.to_string(),
        frac.to_string(),
        item.taken().to_string(),
        item.actual().min(MOST).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use throttle_core::backend::Call;
    use throttle_core::{
        Backend, BackendErrorKind, FixedWindow, Key, Limiter, LocalShare, MemoryBackend, Policy,
        PolicyTree, Rate,
    };

    use super::*;
    use crate::RedisBackend;
    use crate::link::connection::{FaultKind, Reply};
    use crate::link::tests::by_hand::{ByHand, fault, turns};

    fn two() -> PolicyTree {
        let policy = |name| {
            Policy::new(name, FixedWindow::new(Rate::per_day(9)))
                .expect("a policy")
                .into()
        };
        PolicyTree::All(vec![policy("a"), policy("b")])
    }

    fn calls() -> [Call; 2] {
        [Call::from(Key::from("ada")), Call::from(Key::from("ada"))]
    }

    /// What two policies took.
    fn receipt() -> Receipt {
        receipt_of(&calls())
    }

    fn receipt_of(calls: &[Call]) -> Receipt {
        let memory = Limiter::in_memory(two()).expect("a set");
        let decision = memory.check("ada", 1);
        Receipt::of(&decision, calls).expect("a charge").actual(0)
    }

    async fn prepared(store: &ByHand, backend: &RedisBackend) -> Arc<RedisSet> {
        store.connect(Ok(())).await;
        Arc::new(
            backend
                .prepare(PolicySet::new(two()).expect("a set"))
                .expect("a set"),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn charges_that_one_call_can_reach_are_settled_in_one_call() {
        let (single, cluster) = (ByHand::default, ByHand::cluster);
        let two_slots = [Call::from(Key::from("ada")), Call::from(Key::from("bob"))];
        for (store, is_spread, calls, keys) in [
            (single(), false, two_slots.clone(), vec![2]),
            (single(), true, two_slots.clone(), vec![2]),
            (cluster(), false, two_slots.clone(), vec![2]),
            (cluster(), true, two_slots, vec![1, 1]),
            (cluster(), true, calls(), vec![2]),
        ] {
            let builder = RedisBackend::builder(store.clone());
            let builder = if is_spread {
                builder.per_key_slot()
            } else {
                builder.single_slot("x")
            };
            let backend = builder.build().expect("valid options");
            let set = prepared(&store, &backend).await;
            let settling = tokio::spawn(backend.settle(&set, receipt_of(&calls)));
            for keys in keys {
                let sent = store.next().await;
                assert_eq!(sent.keys().len(), keys);
                sent.answer(Ok(Reply::Bytes(b"A".to_vec()))).await;
            }
            assert!(settling.await.expect("no panic").is_ok() && store.is_idle().await);
        }
    }

    /// Keys that are at two servers have no call in common.
    #[tokio::test(start_paused = true)]
    async fn charges_in_a_slot_that_moves_are_settled_one_by_one() {
        let store = ByHand::cluster();
        let builder = RedisBackend::builder(store.clone()).single_slot("x");
        let backend = builder.build().expect("valid options");
        let set = prepared(&store, &backend).await;
        let settle = || tokio::spawn(backend.settle(&set, receipt()));
        let settled = || Ok(Reply::Bytes(b"A".to_vec()));
        let first = settle();
        let sent = store.next().await;
        assert_eq!(sent.keys().len(), 2);
        sent.answer(Err(fault(FaultKind::SlotNotNow))).await;
        store.later().await.answer(settled()).await;
        let second = settle();
        for _ in 0..2 {
            let sent = store.next().await;
            assert_eq!(sent.keys().len(), 1);
            sent.answer(settled()).await;
        }
        for settling in [first, second] {
            assert!(settling.await.expect("no panic").is_ok());
        }
        assert!(store.is_idle().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_charge_to_the_own_share_is_not_settled_at_the_store() {
        let store = ByHand::default();
        let backend = RedisBackend::builder(store.clone())
            .build()
            .expect("valid options");
        let set = prepared(&store, &backend).await;
        let memory = MemoryBackend::new();
        let share =
            LocalShare::new(&memory, RedisBackend::set(&set), NonZeroU32::MIN).expect("a share");
        let decision = share.decide(&calls(), BackendErrorKind::Unavailable);
        let receipt = Receipt::of(&decision, &calls()).expect("a charge");
        assert!(backend.settle(&set, receipt.actual(0)).await.is_ok());
        assert_eq!(backend.stats().calls, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_breaker_is_open_no_settlement_is_sent() {
        let store = ByHand::default();
        let backend = RedisBackend::builder(store.clone())
            .breaker_threshold(1)
            .build()
            .expect("valid options");
        let set = prepared(&store, &backend).await;
        backend.shared.links.of(0).learn(
            b"",
            None,
            Err(&CallError::Fault(fault(FaultKind::Other))),
        );
        let error = backend
            .settle(&set, receipt())
            .await
            .expect_err("the breaker is open");
        assert_eq!(
            (error.kind(), error.is_uncharged()),
            (BackendErrorKind::Suspended, true)
        );
        assert_eq!(
            (backend.stats().calls, backend.stats().failed_settlements),
            (0, 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_of_a_settlement_begins_when_it_is_sent() {
        let store = ByHand::default();
        let backend = RedisBackend::builder(store.clone())
            .build()
            .expect("valid options");
        let set = prepared(&store, &backend).await;
        let link = backend.shared.links.of(0);
        let room = link
            .room
            .take_now(u32::MAX)
            .expect("nothing else is under way");
        let settling = tokio::spawn(backend.settle(&set, receipt()));
        turns().await;
        tokio::time::advance(10 * backend.shared.links.deadlines.decision).await;
        assert!(store.is_idle().await, "there is no room");
        drop(room);
        store
            .next()
            .await
            .answer(Ok(Reply::Bytes(b"A".to_vec())))
            .await;
        assert!(settling.await.expect("no panic").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn settlements_leave_half_of_the_room_to_decisions() {
        let store = ByHand::default();
        let backend = RedisBackend::builder(store.clone())
            .build()
            .expect("valid options");
        let set = prepared(&store, &backend).await;
        let mut settling = tokio::task::JoinSet::new();
        for _ in 0..10_000 {
            settling.spawn(backend.settle(&set, receipt()));
        }
        for _ in 0..200 {
            turns().await;
        }
        let work: u32 = set.prepared.work.iter().sum();
        let room = &backend.shared.links.of(0).room;
        let all =
            u32::try_from(backend.shared.links.deadlines.decision.as_micros() / 4).expect("few");
        assert!(room.take_now(all / 2 + work).is_none(), "some are sent");
        assert!(room.take_now(all / 2).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn settlement_beyond_the_most_fails_and_says_that_the_store_is_saturated() {
        let store = ByHand::default();
        let backend = RedisBackend::builder(store.clone())
            .build()
            .expect("valid options");
        let set = prepared(&store, &backend).await;
        let places = u32::try_from(MOST_SETTLEMENTS).expect("few");
        let _all = backend.shared.settlements.try_acquire_many(places);
        let error = backend.settle(&set, receipt()).await.expect_err("no place");
        assert_eq!(error.kind(), BackendErrorKind::Saturated);
        assert!(error.is_uncharged() && store.is_idle().await);
    }

    #[test]
    fn the_words_of_a_charge_are_numbers_that_a_script_counts_exactly() {
        let shaper = throttle_core::LeakyBucket::new(Rate::per_second(3))
            .max_wait(std::time::Duration::from_secs(9));
        let memory =
            Limiter::in_memory(Policy::new("p", shaper).expect("a policy")).expect("a set");
        assert!(memory.check("ada", 1).is_admitted());
        let decision = memory.check("ada", 2);
        let calls = [Call::from(Key::from("ada")).costing(2)];
        let receipt = Receipt::of(&decision, &calls)
            .expect("a charge")
            .actual(u64::MAX);
        let item = &receipt.items()[0];
        let (at, frac) = item.mark();
        assert!(
            frac > 0,
            "a third of a second is no whole number of microseconds"
        );
        let expected = [
            "1".to_owned(),
            at.to_string(),
            frac.to_string(),
            "2".to_owned(),
            MOST.to_string(),
        ];
        assert_eq!(words(item), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_settlement_that_the_script_does_not_accept_fails_and_says_why() {
        let no_state = "a key holds something that is no state of a limit";
        let no_flag = "the script's reply has no flag";
        for (answer, why) in [("W", no_state), ("x", no_flag), ("", no_flag)] {
            let store = ByHand::default();
            let backend = RedisBackend::builder(store.clone())
                .build()
                .expect("valid options");
            let set = prepared(&store, &backend).await;
            let settling = tokio::spawn(backend.settle(&set, receipt()));
            store
                .next()
                .await
                .answer(Ok(Reply::Bytes(answer.as_bytes().to_vec())))
                .await;
            let error = settling
                .await
                .expect("no panic")
                .expect_err("it is not accepted");
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (BackendErrorKind::Protocol, false)
            );
            let source = std::error::Error::source(&error)
                .expect("a reason")
                .to_string();
            assert_eq!(source, why, "{answer:?}");
            assert!(store.is_idle().await && backend.stats().failed_settlements == 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_slots_that_fail_the_first_error_is_reported() {
        use BackendErrorKind::{Protocol, Unavailable};
        for (faults, kind) in [
            ([FaultKind::Refused, FaultKind::Lost], Protocol),
            ([FaultKind::Lost, FaultKind::Refused], Unavailable),
        ] {
            let store = ByHand::cluster();
            let builder = RedisBackend::builder(store.clone())
                .per_key_slot()
                .breaker_threshold(100);
            let backend = builder.build().expect("valid options");
            let set = prepared(&store, &backend).await;
            let calls = ["ada", "bob"].map(|key| Call::from(Key::from(key)));
            let settling = tokio::spawn(backend.settle(&set, receipt_of(&calls)));
            for fails in faults {
                store.later().await.answer(Err(fault(fails))).await;
            }
            assert_eq!(
                settling
                    .await
                    .expect("no panic")
                    .expect_err("both fail")
                    .kind(),
                kind
            );
        }
    }

    /// Room for the work of both policies, and a microsecond less.
    #[tokio::test(start_paused = true)]
    async fn a_settlement_takes_room_for_the_work_of_each_of_its_charges() {
        let policy = two();
        let work: u32 = PolicySet::new(policy)
            .expect("a set")
            .policies()
            .iter()
            .map(crate::script::server_work::of)
            .sum();
        for (free, is_sent) in [(work, true), (work - 1, false)] {
            let store = ByHand::default();
            let backend = RedisBackend::builder(store.clone())
                .build()
                .expect("valid options");
            let set = prepared(&store, &backend).await;
            let room = &backend.shared.links.of(0).room;
            let all = room
                .take_now(u32::MAX)
                .expect("nothing is under way")
                .num_permits();
            let _held = room
                .take_now(u32::try_from(all).expect("few") - free)
                .expect("nothing is under way");
            let settling = tokio::spawn(backend.settle(&set, receipt()));
            assert_eq!(!store.is_idle().await, is_sent, "room for {free} of {work}");
            settling.abort();
        }
    }

    /// A script finds the charge by the parameters that made it.
    #[tokio::test(start_paused = true)]
    async fn a_charge_is_settled_under_the_parameters_that_made_it() {
        let window = |count| FixedWindow::new(Rate::per_day(count));
        let policy =
            Policy::tiered("p", [("low", window(9)), ("high", window(90))]).expect("tiers");
        let own = policy.own(window(30)).expect("parameters");
        let ada = || Call::from(Key::from("ada"));
        for (call, tag) in [
            (ada(), policy.algorithm().tag()),
            (ada().in_tier(1), policy.tier(1).algorithm().tag()),
            (ada().under(Arc::clone(&own)), own.tag()),
        ] {
            let (store, memory, set) = (
                ByHand::default(),
                MemoryBackend::new(),
                PolicySet::new(policy.clone()),
            );
            let set = set.expect("a set");
            let charged = memory.decide_now(
                &memory.prepare(set.clone()).expect("a set"),
                std::slice::from_ref(&call),
            );
            let receipt = Receipt::of(&charged, &[call]).expect("a charge");
            let backend = RedisBackend::builder(store.clone())
                .build()
                .expect("valid options");
            store.connect(Ok(())).await;
            let set = Arc::new(backend.prepare(set).expect("a set"));
            let _settling = tokio::spawn(backend.settle(&set, receipt));
            let sent = store.next().await;
            assert_eq!(sent.words()[1], set.prepared.scripts.settle.sha());
            assert_eq!(sent.command.args().nth(6), Some(tag.as_slice()));
        }
    }
}
