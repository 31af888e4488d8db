//! Script calls that decide: one request, or several about the same set.

use std::sync::Arc;

use throttle_core::Timestamp;
use throttle_core::backend::is_correction;
use tokio::time::{Instant, timeout};

use crate::link::call_error::CallError;
use crate::link::connection::{Command, FaultKind};
use crate::link::script::Script;
use crate::link::sent_command::LateAnswer;
use crate::links::script_call::ScriptCall;
use crate::script::reply::{Part, Parts, split};
use crate::script::request::{Ask, words};
use crate::shared_backend::SharedBackend;

pub(crate) async fn decide_one(
    shared: &Arc<SharedBackend>,
    ask: &Arc<Ask>,
    until: Instant,
) -> Result<Part, CallError> {
    let link = shared.links.of(ask.slot);
    let room = link.room_for_one(&link.room, ask.work(), until).await?;
    let (asks, late) = (std::slice::from_ref(ask), LateAnswer::default());
    let parts = match decide_batch(shared, asks, until, &late).await {
        // The request was dropped, and its charge is given back when it is known.
        Err(CallError::Late) if is_correction() => {
            drop(room);
            Box::pin(late_parts(shared, asks, late)).await?
        }
        parts => parts?,
    };
    parts
        .into_iter()
        .next()
        .ok_or(CallError::Malformed("the script answered nothing"))
}

/// Decides several requests of the same set, which have their parameters in common, in one call.
/// The caller has taken the room for it.
pub(crate) async fn decide_batch(
    shared: &Arc<SharedBackend>,
    asks: &[Arc<Ask>],
    until: Instant,
    late: &LateAnswer,
) -> Result<Parts, CallError> {
    let Some(first) = asks.first() else {
        return Ok(Parts::new());
    };
    let (slot, is_divisible) = (first.slot, asks.len() > 1);
    // Calls that left while these decisions waited may have found that the slot is moving.
    if is_divisible && shared.links.moving.contains(slot) {
        return Err(CallError::Divided);
    }
    let mut outcome = shared.links.counters.call(asks.len());
    let call = ScriptCall {
        script: &first.prepared.scripts.decide,
        slot,
        name: first.name(),
        is_divisible,
        late: Some(late),
        command: || question(shared, asks, first),
    };
    let reply = outcome.see(call.run(&shared.links, until).await)?;
    let parts = outcome.see(parts_of(reply, asks))?;
    if first.as_of.is_none()
        && shared.options.clock.is_none()
        && let Some(part) = parts.first()
    {
        shared.links.of(slot).clock.set(part.now);
    }
    Ok(parts)
}

/// The answers of a call that was late, if they come within a correction's deadline.
pub(crate) async fn late_parts(
    shared: &SharedBackend,
    asks: &[Arc<Ask>],
    late: LateAnswer,
) -> Result<Parts, CallError> {
    let answer = late.into_inner().ok_or(CallError::Late)?;
    let answer = timeout(shared.links.deadlines.correction, answer).await;
    let reply = answer.ok().and_then(Result::ok).ok_or(CallError::Late)?;
    let reply = reply.map_err(|fault| match fault.kind() {
        // The store is healthy and charged nothing. There is no time left to call it again.
        FaultKind::NoScript | FaultKind::Moved(_) | FaultKind::Ask(_) => CallError::TooLate,
        _ => CallError::Fault(fault),
    });
    let reply = reply?.into_bytes();
    parts_of(reply.ok_or(CallError::Late)?, asks)
}

fn parts_of(reply: Vec<u8>, asks: &[Arc<Ask>]) -> Result<Parts, CallError> {
    let applying = asks.iter().map(|ask| ask.names.len());
    split(reply, applying).ok_or(CallError::Malformed("the script's reply is cut short"))
}

fn question(shared: &SharedBackend, asks: &[Arc<Ask>], first: &Ask) -> Command {
    let names = || {
        asks.iter()
            .flat_map(|ask| ask.names.iter().map(Vec::as_slice))
    };
    let script = &first.prepared.scripts.decide;
    let mut command = head(
        shared,
        script,
        names,
        first.as_of,
        asks.len() * first.calls.len(),
    );
    first.headers().for_each(|header| command.push(header));
    words(asks.iter().map(Arc::as_ref)).for_each(|word| command.push(word));
    command
}

/// The words that every script call begins with, and room for one header and `more` numbers behind
/// them.
pub(crate) fn head<'n, N: Iterator<Item = &'n [u8]>>(
    shared: &SharedBackend,
    script: &Script,
    names: impl Fn() -> N,
    as_of: Option<Timestamp>,
    more: usize,
) -> Command {
    let (keys, bytes) = names().fold((0, 0), |(keys, bytes), name| (keys + 1, bytes + name.len()));
    let mut command = Command::sized("EVALSHA", 6 + keys + more, 128 + bytes + 2 * more);
    command.push(script.sha());
    command.push_number(keys);
    names().for_each(|name| command.push(name));
    command.push(time_word(shared, as_of));
    command.push(&shared.options.slack);
    command
}

/// The first argument of every script: the time to decide at.
pub(crate) fn time_word(shared: &SharedBackend, as_of: Option<Timestamp>) -> String {
    match (shared.time(), as_of) {
        (None, None) => String::new(),
        (None, Some(at)) => format!("@{}", at.as_micros()),
        (Some(now), at) => at.unwrap_or(now).min(now).as_micros().to_string(),
    }
}

#[cfg(test)]
mod tests {

    use throttle_core::backend::Call;
    use throttle_core::{
        Backend, BackendErrorKind, Gcra, Key, ManualClock, Policy, PolicySet, Rate,
    };

    use super::*;
    use crate::RedisBackend;
    use crate::decide::set::RedisSet;
    use crate::link::connection::Reply;
    use crate::link::tests::by_hand::ByHand;

    fn set(backend: &RedisBackend) -> Arc<RedisSet> {
        let policy = Policy::new("p", Gcra::new(Rate::per_minute(5))).expect("a policy");
        Arc::new(
            backend
                .prepare(PolicySet::new(policy).expect("a set"))
                .expect("a set"),
        )
    }

    #[test]
    fn scripts_get_no_time_an_instant_or_the_time_of_a_given_clock() {
        let clock = ManualClock::default();
        clock.set(Timestamp::from_micros(70));
        let builder =
            || RedisBackend::builder(crate::Single::new("redis://127.0.0.1:1").expect("a URL"));
        let servers = builder().build().expect("valid options");
        let own = builder().clock(clock).build().expect("valid options");
        for (backend, as_of, word) in [
            (&servers, None, ""),
            (&servers, Some(50), "@50"),
            (&own, None, "70"),
            (&own, Some(50), "50"),
            // Only a past instant is decided as of.
            (&own, Some(90), "70"),
        ] {
            assert_eq!(
                time_word(&backend.shared, as_of.map(Timestamp::from_micros)),
                word
            );
        }
    }

    /// The reply to a decision as of an earlier instant shows that instant.
    #[tokio::test(start_paused = true)]
    async fn the_clock_of_a_server_is_known_by_its_replies_to_decisions_as_of_now() {
        let store = ByHand::cluster();
        store.part(["tada", "tbob"]);
        let backend = RedisBackend::builder(store.clone())
            .per_key_slot()
            .readable_keys()
            .build();
        let backend = backend.expect("valid options");
        store.connect(Ok(())).await;
        let set = set(&backend);
        let [ada, bob] = ["ada", "bob"].map(|key| [Call::from(Key::from(key))]);
        let as_of = tokio::spawn(backend.decide_as_of(&set, &ada, Timestamp::EPOCH));
        store.next().await.admit().await;
        assert!(as_of.await.expect("no panic").is_ok());
        assert_eq!(backend.now(&set, &ada), None);
        let now = tokio::spawn(backend.decide(&set, &ada));
        store.next().await.admit().await;
        assert!(now.await.expect("no panic").is_ok());
        assert!(backend.now(&set, &ada).is_some());
        assert_eq!(
            backend.now(&set, &bob),
            None,
            "another server has another clock"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_is_no_answer_says_what_is_wrong_with_it() {
        let now = 1e15_f64.to_le_bytes();
        for (reply, why) in [
            (
                Reply::Bytes(now.to_vec()),
                "the script's reply is cut short",
            ),
            (
                Reply::Bytes([&now[..], b"A\0\0\0\0x"].concat()),
                "the script's reply is cut short",
            ),
            (Reply::Nil, "the script's reply is no string"),
            (
                Reply::Status("OK".to_owned()),
                "the script's reply is no string",
            ),
        ] {
            for max_batch in [1, 64] {
                let store = ByHand::default();
                let builder = RedisBackend::builder(store.clone()).max_batch(max_batch);
                let backend = builder.build().expect("valid options");
                store.connect(Ok(())).await;
                let deciding =
                    tokio::spawn(backend.decide(&set(&backend), &[Call::from(Key::from("ada"))]));
                store.next().await.answer(Ok(reply.clone())).await;
                let error = deciding
                    .await
                    .expect("no panic")
                    .expect_err("it is no answer");
                assert_eq!(
                    (error.kind(), error.is_uncharged()),
                    (BackendErrorKind::Protocol, false)
                );
                let source = std::error::Error::source(&error)
                    .expect("a reason")
                    .to_string();
                assert_eq!(source, why, "{reply:?}");
            }
        }
    }
}
