//! Script calls that decide: one request, or several about the same set.

use std::sync::Arc;

use throttle_core::Timestamp;
use tokio::time::Instant;

use crate::link::call_error::CallError;
use crate::link::connection::Command;
use crate::link::script::Script;
use crate::link::script_call::{Head, ScriptCall, Subject};
use crate::script::prepared::Prepared;
use crate::script::reply::{Part, Parts, split};
use crate::script::request::Ask;
use crate::shared::Shared;

pub(crate) async fn decide_one(shared: &Arc<Shared>, ask: &Arc<Ask>, until: Instant) -> Result<Part, CallError> {
    let _room = shared.link.room_by(ask.slot, ask.work(), until).await?;
    ask_one(shared, &ask.prepared.scripts.decide, ask, until).await
}

/// Decides several requests in one call. The caller has taken the room for it.
pub(crate) async fn decide_batch(shared: &Arc<Shared>, asks: &[Arc<Ask>], until: Instant) -> Result<Parts, CallError> {
    let Some(first) = asks.first() else { return Ok(Parts::new()) };
    ask_all(shared, &first.prepared.scripts.decide, asks, until).await
}

/// Decides a request whose stored values were written under other parameters.
pub(crate) async fn carry_over(shared: &Arc<Shared>, ask: &Arc<Ask>, until: Instant) -> Result<Part, CallError> {
    let _room = shared.link.room_by(ask.slot, ask.work(), until).await?;
    ask_one(shared, &ask.prepared.scripts.carry, ask, until).await
}

async fn ask_one(shared: &Arc<Shared>, script: &Script, ask: &Arc<Ask>, until: Instant) -> Result<Part, CallError> {
    let parts = ask_all(shared, script, std::slice::from_ref(ask), until).await?;
    parts.into_iter().next().ok_or(CallError::Malformed("the script answered nothing"))
}

/// Asks about several requests of the same set.
async fn ask_all(shared: &Arc<Shared>, script: &Script, asks: &[Arc<Ask>], until: Instant) -> Result<Parts, CallError> {
    let Some(first) = asks.first() else { return Ok(Parts::new()) };
    let time = time_word(shared, first.as_of);
    let reply = run(shared, &first.prepared, script, &time, asks, first.slot, until).await?;
    let applying = asks.iter().map(|ask| ask.names.len());
    let parts = split(reply, applying).ok_or(CallError::Malformed("the script's reply is cut short"))?;
    if time.is_empty()
        && let Some(part) = parts.first()
    {
        shared.link.clock(first.slot).set(part.now);
    }
    Ok(parts)
}
impl Subject for [Arc<Ask>] {
    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().flat_map(|ask| ask.names.iter().map(Vec::as_slice))
    }

    fn push_words(&self, command: &mut Command) {
        self.iter().flat_map(|ask| ask.costs()).for_each(|cost| command.push(cost));
    }
}

/// Runs a script of a set with the arguments that all its scripts begin with.
pub(crate) async fn run<S: Subject + ?Sized>(
    shared: &Arc<Shared>,
    prepared: &Prepared,
    script: &Script,
    time: &str,
    subject: &S,
    slot: u16,
    until: Instant,
) -> Result<Vec<u8>, CallError> {
    let head = Head { time, slack: &shared.options.slack, headers: &prepared.headers };
    ScriptCall { script, head, subject, slot }.run(&shared.link, until).await
}

/// The first argument of every script: the time to decide at.
pub(crate) fn time_word(shared: &Shared, as_of: Option<Timestamp>) -> String {
    match (shared.time(), as_of) {
        (None, None) => String::new(),
        (None, Some(at)) => format!("@{}", at.as_micros()),
        (Some(now), at) => at.unwrap_or(now).min(now).as_micros().to_string(),
    }
}
