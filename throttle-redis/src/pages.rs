//! Goes through the store's keys, a page at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::link::Link;
use crate::link::call_error::CallError;
use crate::link::connection::{Command, Reply};
use crate::shared_backend::SharedBackend;

/// A step of going through all keys may take longer than a decision.
pub(crate) const STEP: Duration = Duration::from_secs(1);
/// Keys looked at in one step.
pub(crate) const COUNT: &str = "500";

/// The names that match a pattern, on each primary.
pub(crate) struct Pages {
    pattern: String,
    /// Those that are left, the current one last.
    primaries: Vec<Arc<Link>>,
    cursor: Vec<u8>,
}

impl Pages {
    pub(crate) async fn of(shared: &SharedBackend, pattern: String) -> Result<Self, CallError> {
        let mut primaries = shared.links.all().await?;
        primaries.reverse();
        Ok(Self {
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
        let until = Instant::now() + STEP;
        let reply = primary.live(until).await?.call(scan, until).await?;
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
    shared: &SharedBackend,
    names: &[Vec<u8>],
    until: Instant,
    command: impl Fn(&[Vec<u8>]) -> Command,
) -> Result<Vec<Reply>, CallError> {
    // Keys of a cluster can be named together only where they share a slot.
    let most = if shared.one_slot.is_some() { 500 } else { 1 };
    let mut replies = Vec::new();
    for names in names.chunks(most) {
        let slot = shared.slot(&names[0]);
        replies.push(shared.links.call(slot, command(names), until).await?);
    }
    Ok(replies)
}
