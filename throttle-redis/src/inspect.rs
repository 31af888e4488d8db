//! Shows what the store holds of one key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Decision, Key, Policy, PolicySet, Timestamp};
use tokio::time::Instant;

use crate::decide::one_slot::ask_in_one_slot;
use crate::decide::set::RedisSet;
use crate::link::call_error::CallError;
use crate::link::connection::{Command, Reply, Route};
use crate::script::layout;
use crate::script::reply::answer;
use crate::shared::Shared;

/// The value that the store holds for one key of a policy. `Display` shows it in one line, without the key's name.
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
    /// The value's numbers by name, as [`State::to_wire`](throttle_core::algorithm::State::to_wire) lists them.
    /// Instants in µs since the Unix epoch.
    pub fields: Vec<(&'static str, i64)>,
    /// The time until the server expires the key.
    pub expires_in: Option<Duration>,
    /// The server's time.
    pub now: Timestamp,
    /// The decision of a peek: how many units are left, and when more are available. Nothing was charged.
    pub decision: Decision,
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.decision.reset_after().as_micros();
        write!(f, "{} left, as good as unused in {micros} µs", self.decision.remaining())?;
        for (name, number) in &self.fields {
            write!(f, ", {name} {number}")?;
        }
        match self.expires_in {
            Some(expires) => write!(f, ", forgotten in {} ms", expires.as_millis()),
            None => f.write_str(", not held"),
        }
    }
}

pub(crate) async fn inspect(shared: &Arc<Shared>, policy: &Policy, key: &Key) -> Result<Inspection, CallError> {
    let set = PolicySet::new(policy.clone()).map_err(|_| CallError::Malformed("a policy is always a set"))?;
    let set = RedisSet::new(shared, set);
    let until = Instant::now() + shared.link.deadline;
    let ask = Arc::new(set.ask(shared, &[Call::peek(key.clone())]));
    let part = ask_in_one_slot(shared, &set, &ask, until).await?;
    let decision = answer(&ask, &part)?;
    let Some(name) = ask.names.first() else { return Err(CallError::Malformed("a key has a name")) };
    let until = Instant::now() + shared.link.deadline;
    let live = shared.link.live(until).await?;
    let ask_for = |word: &str| Command::new(word).arg(name).to(Route::Slot(ask.slot));
    let value = live.call(ask_for("GET"), until).await?.into_bytes();
    let expires = match live.call(ask_for("PTTL"), until).await? {
        Reply::Int(millis) => u64::try_from(millis).ok().map(Duration::from_millis),
        _ => None,
    };
    Ok(Inspection {
        name: String::from_utf8_lossy(name).into_owned(),
        fields: value.as_deref().map(fields).unwrap_or_default(),
        value,
        expires_in: expires,
        now: part.now,
        decision,
    })
}

/// The numbers at the end of a value, by name. The value may have been written by another algorithm than the policy's:
/// a tier's, or a former one from which nothing can be carried over.
fn fields(value: &[u8]) -> Vec<(&'static str, i64)> {
    let Some((algorithm, header)) = layout(value) else { return Vec::new() };
    let (first, more): (&[&str], &[&str]) = match algorithm {
        "gcra" => (&["arrival", "arrival_part"], &[]),
        "token_bucket" => (&["last", "grains_left"], &[]),
        "leaky_meter" => (&["last", "grains_owed"], &[]),
        "leaky_bucket" => (&["last", "next_slot", "next_slot_part"], &[]),
        "interval_bucket" => (&["interval_start", "tokens"], &[]),
        "fixed_window" | "calendar_quota" => (&["window_start", "used"], &[]),
        "sliding_window" => (&["last"], &["used"]),
        "sliding_log" => (&["used"], &["at", "units"]),
        _ => return Vec::new(),
    };
    let numbers = value.get(header..).unwrap_or_default();
    let names = first.iter().chain(more.iter().cycle());
    numbers.as_chunks().0.iter().zip(names).map(|(number, name)| (*name, f64::from_le_bytes(*number) as i64)).collect()
}
