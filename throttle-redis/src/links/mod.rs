//! The links to the servers of the store: one to a single server, or one to each server of a
//! cluster.

pub(crate) mod hash_slot;
mod moving_slots;
pub(crate) mod script_call;
mod servers;
mod slot_map;

use std::sync::Arc;

use tokio::time::Instant;

use crate::counters::Counters;
use crate::link::call_error::CallError;
use crate::link::connection::{Command, Connector, Fault, FaultKind, Reply};
use crate::link::{Deadlines, Link, LinkSettings};
use crate::observed::Label;
use moving_slots::MovingSlots;
use servers::{Entry, Servers};

/// Redirections followed for one command.
const REDIRECTIONS: u32 = 4;

pub(crate) struct Links {
    /// The link to a single server. Of a cluster, the one by which its servers are found.
    entry: Arc<Link>,
    /// The servers of a cluster.
    servers: Option<Arc<Servers>>,
    pub(crate) moving: MovingSlots,
    pub(crate) deadlines: Deadlines,
    pub(crate) counters: Arc<Counters>,
}

/// The server that a command is for.
#[derive(Clone)]
struct Target {
    link: Arc<Link>,
    /// Whether the server takes the command only after `ASKING`.
    asking: bool,
}

impl Links {
    pub(crate) fn new(
        connector: Box<dyn Connector>,
        deadlines: Deadlines,
        threshold: u32,
        label: Label,
    ) -> Self {
        let counters = Counters::new(label);
        let settings = LinkSettings {
            deadlines,
            threshold,
            is_entry: true,
            counters: Arc::clone(&counters),
        };
        let (entry, servers) = if connector.cluster().is_empty() {
            (Link::new(connector, settings), None)
        } else {
            let servers = Arc::new(Servers::new(connector, settings.clone()));
            let entry = Entry(Arc::clone(&servers));
            (Link::new(Box::new(entry), settings), Some(servers))
        };
        Self {
            entry,
            servers,
            moving: MovingSlots::new(),
            deadlines,
            counters,
        }
    }

    /// The link to the server of a slot.
    #[inline]
    pub(crate) fn of(&self, slot: u16) -> Arc<Link> {
        let known = self.servers.as_ref().and_then(|servers| servers.of(slot));
        known.unwrap_or_else(|| Arc::clone(&self.entry))
    }

    /// The link to the server of a slot. Waits until the servers of a cluster are known.
    pub(crate) async fn found(
        &self,
        slot: u16,
        name: &[u8],
        until: Instant,
    ) -> Result<Arc<Link>, CallError> {
        let link = self.of(slot);
        if self.servers.is_none() || !Arc::ptr_eq(&link, &self.entry) {
            return Ok(link);
        }
        Box::pin(link.live_for(name, Instant::now(), until)).await?;
        Ok(self.of(slot))
    }

    /// The links to all servers, as the cluster lists them now.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<Link>>, CallError> {
        match &self.servers {
            Some(servers) => {
                servers.ask().await.map_err(CallError::Fault)?;
                Ok(servers.all())
            }
            None => Ok(vec![Arc::clone(&self.entry)]),
        }
    }

    /// Whether every server decides, as far as is known. A half-open breaker counts as healthy,
    /// because it waits for a decision: if it counted as unhealthy, a process that receives requests
    /// only while it is healthy would wait for ever.
    pub(crate) fn is_healthy(&self) -> bool {
        let servers = self.servers.as_ref();
        self.entry.is_healthy() && servers.is_none_or(|servers| servers.are_healthy())
    }

    /// Sends a command about keys of a slot, and follows redirections.
    pub(crate) async fn call(
        &self,
        slot: u16,
        command: Command,
        until: Instant,
    ) -> Result<Reply, CallError> {
        let link = self.found(slot, b"", until).await?;
        let (mut target, mut redirections) = (Target::of(link), 0);
        loop {
            let live = target.link.live(until).await?;
            let command = command.clone().after_asking(target.asking);
            match live.call(command, until).await {
                Err(CallError::Fault(fault)) if redirections < REDIRECTIONS => {
                    let next = self.redirected(slot, &fault);
                    target = next.ok_or(CallError::Fault(fault))?;
                    redirections += 1;
                }
                answer => return answer,
            }
        }
    }

    /// The server to which the answer to a command about a slot redirects. If the slot has moved
    /// there for good, it is that server's from now on.
    fn redirected(&self, slot: u16, fault: &Fault) -> Option<Target> {
        let servers = self.servers.as_ref()?;
        let (link, asking) = match fault.kind() {
            FaultKind::Moved(Some(address)) => (servers.moved(slot, address), false),
            FaultKind::Ask(Some(address)) => (servers.at(address), true),
            _ => return None,
        };
        Some(Target { link, asking })
    }
}

impl Target {
    fn of(link: Arc<Link>) -> Self {
        Self {
            link,
            asking: false,
        }
    }
}
