//! Goes through the store's keys, a page at a time.

use std::time::Duration;

use tokio::time::Instant;

use crate::link::call_error::CallError;
use crate::link::connection::{Command, Reply, Route};
use crate::link::live_connection::LiveConnection;
use crate::shared::Shared;

/// A step of going through all keys may take longer than a decision.
pub(crate) const STEP: Duration = Duration::from_secs(1);
/// Keys looked at in one step.
pub(crate) const COUNT: &str = "500";

/// Redirections followed for one command.
const REDIRECTIONS: u32 = 4;

/// The names that match a pattern, on each primary.
pub(crate) struct Pages<'a> {
    live: &'a LiveConnection,
    pattern: String,
    /// Those that are left, the current one last.
    primaries: Vec<Route>,
    cursor: Vec<u8>,
}

impl<'a> Pages<'a> {
    pub(crate) async fn of(
        shared: &Shared,
        live: &'a LiveConnection,
        pattern: String,
    ) -> Result<Self, CallError> {
        let mut primaries = match shared.link.is_cluster() {
            true => live
                .ask_for_slots(Route::Any, Instant::now() + STEP)
                .await?
                .routes(),
            false => vec![Route::Any],
        };
        primaries.reverse();
        Ok(Self {
            live,
            pattern,
            primaries,
            cursor: b"0".to_vec(),
        })
    }

    /// The next page, which may be empty; `None` behind the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, CallError> {
        let Some(primary) = self.primaries.last() else {
            return Ok(None);
        };
        let scan = Command::new("SCAN")
            .arg(&self.cursor)
            .arg("MATCH")
            .arg(&self.pattern)
            .arg("COUNT")
            .arg(COUNT);
        let reply = self
            .live
            .call(scan.to(primary.clone()), Instant::now() + STEP)
            .await?;
        let (next, names) =
            scanned(reply).ok_or(CallError::Malformed("SCAN answered something else"))?;
        if next == b"0" {
            self.primaries.pop();
        }
        self.cursor = next;
        Ok(Some(names))
    }
}

fn scanned(reply: Reply) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut parts = reply.into_array()?.into_iter();
    let cursor = parts.next()?.into_bytes()?;
    let names = parts
        .next()?
        .into_array()?
        .into_iter()
        .map(Reply::into_bytes)
        .collect::<Option<_>>()?;
    Some((cursor, names))
}

/// Runs a command on some keys, on as many together as there can be. Returns the replies.
pub(crate) async fn on_keys(
    shared: &Shared,
    live: &LiveConnection,
    names: &[Vec<u8>],
    until: Instant,
    command: impl Fn(&[Vec<u8>]) -> Command,
) -> Result<Vec<Reply>, CallError> {
    // Keys of a cluster can be named together only where they share a slot.
    let at_once = if shared.link.is_cluster() && !shared.keyspace.is_single_slot() {
        1
    } else {
        500
    };
    let mut replies = Vec::new();
    for names in names.chunks(at_once) {
        let (mut route, mut redirections) = (Route::Slot(shared.slot(&names[0])), 0);
        loop {
            match live.call(command(names).to(route.clone()), until).await {
                Ok(reply) => {
                    replies.push(reply);
                    break;
                }
                Err(CallError::Fault(fault)) if redirections < REDIRECTIONS => {
                    route = fault.redirection().ok_or(CallError::Fault(fault))?;
                }
                Err(error) => return Err(error),
            }
            redirections += 1;
        }
    }
    Ok(replies)
}
