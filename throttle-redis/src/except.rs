//! Sets, lifts and lists exceptions for single keys, and counts strikes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::Key;
use throttle_core::backend::{Ban, ExceptedKey, Exception};
use tokio::time::Instant;

use crate::decide::call::{head, time_word};
use crate::decide::set::RedisSet;
use crate::link::call_error::CallError;
use crate::link::connection::{Command, Reply};
use crate::links::script_call::ScriptCall;
use crate::pages::{Pages, STEP, on_keys};
use crate::script;
use crate::script::reply::unexpected;
use crate::shared_backend::SharedBackend;

/// Sets an exception for one key in one step, or lifts it.
pub(crate) async fn except(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    policy: usize,
    key: &Key,
    exception: Option<&Exception>,
) -> Result<Vec<ExceptedKey>, CallError> {
    let over = exception.map(Exception::to_wire).unwrap_or_default();
    let within = shared.links.deadlines.decision;
    change(shared, set, policy, key, &[over], within).await
}

/// Counts a strike in one step. Returns the ban that it has begun.
pub(crate) async fn strike(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    policy: usize,
    key: &Key,
    ban: &Ban,
) -> Result<Vec<ExceptedKey>, CallError> {
    let numbers = ban.numbers().map(|number| number.to_string().into_bytes());
    change(
        shared,
        set,
        policy,
        key,
        &[&[Vec::new()][..], &numbers].concat(),
        shared.links.deadlines.correction,
    )
    .await
}

/// Runs the script on one key. Returns the ban that has begun.
async fn change(
    shared: &Arc<SharedBackend>,
    set: &RedisSet,
    policy: usize,
    key: &Key,
    words: &[Vec<u8>],
    within: Duration,
) -> Result<Vec<ExceptedKey>, CallError> {
    let name = shared.keyspace.name(&set.names[policy], key);
    let script = script::except();
    let header = set.set().policies()[policy].algorithm().tag();
    let command = || {
        let names = || std::iter::once(name.as_slice());
        let command = head(shared, script, names, None, words.len());
        let command = command.arg(&header);
        words.iter().fold(command, Command::arg)
    };
    let call = ScriptCall {
        script,
        slot: shared.slot(&name),
        name: &name,
        is_divisible: false,
        late: None,
        command,
    };
    // What was refused until then may be admitted afterwards, or the reverse.
    let _forgetting = shared.shortcut.forgetting(|| vec![&name]);
    match call
        .run(&shared.links, Instant::now() + within)
        .await?
        .as_slice()
    {
        b"A" => Ok(Vec::new()),
        b"P" => Err(CallError::Malformed(
            "the exception is over already, by the server's clock",
        )),
        reply => match reply.strip_prefix(b"B").and_then(Exception::from_wire) {
            Some((exception, b"")) => {
                let key = String::from_utf8_lossy(&name).into_owned();
                Ok(vec![ExceptedKey { key, exception }])
            }
            _ => Err(unexpected(reply.first().copied())),
        },
    }
}

/// Goes through the keys of a policy, and lists those with an exception.
pub(crate) async fn exceptions(
    shared: &Arc<SharedBackend>,
    policy: &str,
    most: usize,
) -> Result<Vec<ExceptedKey>, CallError> {
    let mut pages = Pages::of(shared, shared.keyspace.pattern(policy, ":")).await?;
    // A page may name a key that an earlier one has named.
    let mut found = BTreeMap::new();
    while found.len() < most
        && let Some(names) = pages.next().await?
    {
        let list = |names: &[Vec<u8>]| {
            let list = Command::new("EVAL")
                .arg(script::exceptions().source())
                .arg(names.len().to_string());
            let list = names.iter().fold(list, Command::arg);
            list.arg(time_word(shared, None))
        };
        for reply in on_keys(shared, &names, Instant::now() + STEP, list).await? {
            let parts = reply
                .into_array()
                .unwrap_or_default()
                .into_iter()
                .filter_map(Reply::into_bytes);
            let parts: Vec<Vec<u8>> = parts.collect();
            for [name, head] in parts.as_chunks().0 {
                if let Some((exception, _)) = Exception::from_wire(head) {
                    found.insert(String::from_utf8_lossy(name).into_owned(), exception);
                }
            }
        }
    }
    Ok(found
        .into_iter()
        .take(most)
        .map(|(key, exception)| ExceptedKey { key, exception })
        .collect())
}
