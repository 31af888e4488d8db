//! Shows what the store holds of one key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::{Call, Exception};
use throttle_core::{Decision, Key, Policy, PolicySet, Timestamp};
use tokio::time::Instant;

use crate::decide::one_slot::ask_in_one_slot;
use crate::decide::set::RedisSet;
use crate::link::call_error::CallError;
use crate::link::connection::{Command, Reply};
use crate::script::kind::Kind;
use crate::script::reply::answer;
use crate::shared_backend::SharedBackend;

/// The value that the store holds for one key of a policy. `Display` shows it in one line, without
/// the key's name.
///
/// ```no_run
/// # async fn demo(backend: throttle_redis::RedisBackend) -> Result<(), Box<dyn std::error::Error>> {
/// use throttle_core::{Gcra, Key, Policy, Rate};
///
/// let per_user = Policy::new("per-user", Gcra::new(Rate::per_minute(100)))?;
/// let unused = backend.inspect(&per_user, &Key::from("ada")).await?;
/// assert_eq!((unused.value, unused.decision.remaining()), (None, 100));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The key's name on the server.
    pub name: String,
    /// The stored bytes; `None` for a key that is unused or has expired.
    pub value: Option<Vec<u8>>,
    /// The value's numbers by name, as [`State::to_wire`](throttle_core::algorithm::State::to_wire)
    /// lists them. Instants in µs since the Unix epoch.
    pub fields: Vec<(&'static str, i64)>,
    /// The time until the server expires the key.
    pub expires_in: Option<Duration>,
    /// The server's time.
    pub now: Timestamp,
    /// The decision of a peek: how many units are left, and when more are available. Nothing was
    /// charged.
    pub decision: Decision,
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.decision.reset_after().as_micros();
        write!(
            f,
            "{} left, as good as unused in {micros} µs",
            self.decision.remaining()
        )?;
        for (name, number) in &self.fields {
            write!(f, ", {name} {number}")?;
        }
        match self.expires_in {
            Some(expires) => write!(f, ", forgotten in {} ms", expires.as_millis()),
            None => f.write_str(", not held"),
        }
    }
}

pub(crate) async fn inspect(
    shared: &Arc<SharedBackend>,
    policy: &Policy,
    key: &Key,
) -> Result<Inspection, CallError> {
    let set = PolicySet::new(policy.clone())
        .map_err(|_| CallError::Malformed("a policy is always a set"))?;
    let set = RedisSet::new(shared, set);
    let until = Instant::now() + shared.links.deadlines.decision;
    let ask = set.ask(shared, &[Call::peek(key.clone())]);
    let part = ask_in_one_slot(shared, &set, &ask, until).await?;
    let decision = answer(&ask, &part)?;
    let Some(name) = ask.names.first() else {
        return Err(CallError::Malformed("a key has a name"));
    };
    let until = Instant::now() + shared.links.deadlines.decision;
    let ask_for = |word| {
        let command = Command::new(word).arg(name);
        shared.links.call(ask.slot, command, until)
    };
    let value = ask_for("GET").await?.into_bytes();
    let expires = match ask_for("PTTL").await? {
        Reply::Int(millis) => u64::try_from(millis).ok().map(Duration::from_millis),
        _ => None,
    };
    Ok(Inspection {
        name: String::from_utf8_lossy(name).into_owned(),
        // Another algorithm than the policy's may have written the value: a tier's, a key's own or
        // a former one.
        fields: value
            .as_deref()
            .map(|value| Kind::numbers(beneath(value)))
            .unwrap_or_default(),
        value,
        expires_in: expires,
        now: part.now,
        decision,
    })
}

/// A value without the exception over it.
fn beneath(value: &[u8]) -> &[u8] {
    Exception::from_wire(value).map_or(value, |(_, beneath)| beneath)
}

#[cfg(test)]
mod tests {
    use throttle_core::{FixedWindow, Rate};

    use super::*;
    use crate::RedisBackend;
    use crate::link::tests::by_hand::ByHand;

    #[tokio::test(start_paused = true)]
    async fn an_inspection_asks_the_server_of_the_key_and_shows_what_it_holds() {
        const DAY: i64 = 86_400_000_000;
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(9))).expect("a policy");
        let algorithm = *policy.algorithm();
        let now = Timestamp::from_micros(20_000 * DAY + 1_000_000);
        let value = algorithm
            .decide(algorithm.fresh(), now, 4)
            .0
            .to_wire(&algorithm)
            .expect("a value");
        let left = u64::try_from(DAY - 1_000_000).expect("in the day");
        for (value, ttl, fields, expires_in, shown) in [
            (
                Some(value),
                86_409_000,
                vec![("window_start", 20_000 * DAY), ("used", 4)],
                Some(Duration::from_millis(86_409_000)),
                format!(
                    "5 left, as good as unused in {left} µs, window_start {}, used 4, forgotten \
                        in 86409000 ms",
                    20_000 * DAY
                ),
            ),
            (
                None,
                -2,
                vec![],
                None,
                "9 left, as good as unused in 0 µs, not held".to_owned(),
            ),
        ] {
            let store = ByHand::cluster();
            let backend = RedisBackend::builder(store.clone())
                .per_key_slot()
                .readable_keys()
                .build();
            let backend = backend.expect("valid options");
            store.connect(Ok(())).await;
            let (asked, of) = (backend.clone(), policy.clone());
            let inspecting =
                tokio::spawn(async move { asked.inspect(&of, &Key::from("ada")).await });
            let held = value.clone().unwrap_or_default();
            let length = u32::try_from(held.len()).expect("short").to_le_bytes();
            let reply = [
                &(now.as_micros() as f64).to_le_bytes()[..],
                b"A",
                &length,
                &held,
            ]
            .concat();
            store.next().await.answer(Ok(Reply::Bytes(reply))).await;
            for (word, answer) in [
                ("GET", value.clone().map_or(Reply::Nil, Reply::Bytes)),
                ("PTTL", Reply::Int(ttl)),
            ] {
                let sent = store.next().await;
                assert_eq!(sent.words(), [word, "throttle{tada}p:"]);
                sent.answer(Ok(answer)).await;
            }
            let inspected = inspecting.await.expect("no panic").expect("an inspection");
            assert_eq!(
                (inspected.name.as_str(), inspected.now),
                ("throttle{tada}p:", now)
            );
            assert_eq!(
                (&inspected.value, &inspected.fields, inspected.expires_in),
                (&value, &fields, expires_in)
            );
            assert_eq!(inspected.to_string(), shown);
        }
    }

    /// Another program may have written the value, or have made it live for ever.
    #[tokio::test(start_paused = true)]
    async fn a_value_that_no_limit_wrote_has_no_numbers_and_a_key_may_live_for_ever() {
        for (value, ttl) in [
            (&b""[..], Reply::Int(-1)),
            (b"?12345678", Reply::Nil),
            (b"f", Reply::Int(-1)),
        ] {
            let store = ByHand::default();
            let backend = RedisBackend::builder(store.clone())
                .build()
                .expect("valid options");
            store.connect(Ok(())).await;
            let policy = Policy::new("p", FixedWindow::new(Rate::per_day(9))).expect("a policy");
            let asked = backend.clone();
            let inspecting =
                tokio::spawn(async move { asked.inspect(&policy, &Key::from("ada")).await });
            store.next().await.admit().await;
            store
                .next()
                .await
                .answer(Ok(Reply::Bytes(value.to_vec())))
                .await;
            store.next().await.answer(Ok(ttl)).await;
            let inspected = inspecting.await.expect("no panic").expect("an inspection");
            assert_eq!(
                (
                    inspected.value.as_deref(),
                    inspected.fields,
                    inspected.expires_in
                ),
                (Some(value), vec![], None)
            );
            assert!(inspected.decision.is_admitted() && inspected.decision.remaining() == 9);
        }
    }
}
