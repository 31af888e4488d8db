//! The servers of a cluster: a link to each of them, and which of them has which slots.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, timeout};

use super::hash_slot::SLOTS;
use super::slot_map::{self, SlotRanges};
use crate::link::call_error::CallError;
use crate::link::connection::{
    Address, Command, Connection, ConnectionFuture, Connector, Fault, FaultKind, Reply,
    first_success,
};
use crate::link::live_connection::LiveConnection;
use crate::link::reconnect_pauses::{Pauses, random};
use crate::link::{Link, LinkSettings};

/// The first and the longest pause between two questions for the slots. While a server is away,
/// each process of a fleet asks.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pauses between questions for the slots.
pub(crate) fn slot_pauses() -> Pauses {
    Pauses::new(PAUSE, LONGEST_PAUSE)
}

pub(super) struct Servers {
    connector: Box<dyn Connector>,
    settings: LinkSettings,
    table: RwLock<Table>,
    pauses: Mutex<Pauses>,
}

#[derive(Default)]
struct Table {
    links: BTreeMap<Address, Arc<Link>>,
    /// The link to the server of each slot that has one; nothing before the servers are known.
    slots: Vec<Option<Arc<Link>>>,
}

impl Servers {
    pub(super) fn new(connector: Box<dyn Connector>, settings: LinkSettings) -> Self {
        Self {
            connector,
            settings,
            table: RwLock::default(),
            pauses: Mutex::new(slot_pauses()),
        }
    }

    pub(super) fn of(&self, slot: u16) -> Option<Arc<Link>> {
        self.table.read().slots.get(usize::from(slot))?.clone()
    }

    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        self.table.read().links.values().cloned().collect()
    }

    pub(super) fn are_healthy(&self) -> bool {
        self.all().iter().all(|link| link.is_healthy())
    }

    /// The link to the server at an address, which is opened if there is none.
    pub(super) fn at(self: &Arc<Self>, address: &Address) -> Arc<Link> {
        if let Some(link) = self.table.read().links.get(address) {
            return Arc::clone(link);
        }
        // Metrics count it, and must not run under a lock.
        let link = self.open(address);
        let mut table = self.table.write();
        Arc::clone(table.links.entry(address.clone()).or_insert(link))
    }

    /// Notes that a slot has moved, and returns the link to its server.
    pub(super) fn move_slot(self: &Arc<Self>, slot: u16, address: &Address) -> Arc<Link> {
        let link = self.at(address);
        if let Some(server) = self.table.write().slots.get_mut(usize::from(slot)) {
            *server = Some(Arc::clone(&link));
        }
        link
    }

    fn open(self: &Arc<Self>, address: &Address) -> Arc<Link> {
        let member = MemberConnector {
            servers: Arc::downgrade(self),
            address: address.clone(),
        };
        Link::new(Box::new(member), self.settings.clone())
    }

    /// Asks for the slots in a task of its own, unless they were asked for lately.
    pub(super) fn look_for_slots(self: &Arc<Self>) {
        let mut pauses = self.pauses.lock();
        let now = Instant::now();
        if pauses.wait(now).is_zero() {
            pauses.begin(now, random());
            let servers = Arc::clone(self);
            tokio::spawn(async move { servers.ask().await });
        }
    }

    /// Asks one of the healthy servers which of them has which slots. If none is healthy, or it
    /// does not answer, those that the connector names are asked.
    pub(super) async fn ask(self: &Arc<Self>) -> Result<(), Fault> {
        let healthy: Vec<(Address, Arc<Link>)> = {
            let table = self.table.read();
            let healthy = table.links.iter().filter(|(_, link)| link.is_healthy());
            healthy
                .map(|(at, link)| (at.clone(), Arc::clone(link)))
                .collect()
        };
        let within = self.settings.deadlines.connect;
        if let Some((address, link)) = healthy.get(random() as usize % healthy.len().max(1))
            && let Ok(live) = link.live(Instant::now() + within).await
            && let Ok(ranges) = slots_by(&live, address, within).await
        {
            self.learn(ranges);
            return Ok(());
        }
        self.enter().await
    }

    /// Asks the servers that the connector names.
    async fn enter(self: &Arc<Self>) -> Result<(), Fault> {
        let within = self.settings.deadlines.connect;
        let ask = |address: Address| {
            let opening = self.connector.connect_to(&address, within);
            async move {
                let asked = timeout(within, async {
                    let live = LiveConnection::new(opening.await?, 0);
                    slots_by(&live, &address, within).await
                });
                asked.await.unwrap_or_else(|_| Err(no_list()))
            }
        };
        match first_success(self.connector.cluster().into_iter().map(ask)).await {
            Ok(ranges) => {
                self.learn(ranges);
                Ok(())
            }
            Err(mut faults) => Err(faults.pop().unwrap_or_else(no_list)),
        }
    }

    /// Replaces the slots. Links to servers that have none are dropped.
    fn learn(self: &Arc<Self>, ranges: SlotRanges) {
        let (mut links, mut slots) = (BTreeMap::new(), vec![None; SLOTS]);
        for (range, address) in ranges {
            let link = links
                .entry(address.clone())
                .or_insert_with(|| self.at(&address));
            let range = usize::from(*range.start())..=usize::from(*range.end());
            if let Some(owned) = slots.get_mut(range) {
                owned.fill(Some(Arc::clone(link)));
            }
        }
        let old = mem::replace(&mut *self.table.write(), Table { links, slots });
        // Not under the lock: metrics count the links that end.
        drop(old);
    }
}

/// The slots, as the server at an address lists them.
async fn slots_by(
    live: &LiveConnection,
    (host, port): &Address,
    within: Duration,
) -> Result<SlotRanges, Fault> {
    let question = Command::new("CLUSTER").arg("SLOTS");
    let reply = match live.call(question, Instant::now() + within).await {
        Ok(reply) => reply,
        Err(CallError::Fault(fault)) => return Err(fault.of(format_args!("{host}:{port}"))),
        Err(_) => return Err(no_list()),
    };
    let ranges = slot_map::read(reply, host).filter(|ranges| !ranges.is_empty());
    ranges.ok_or_else(|| {
        let message = "a server of the cluster knows none that has slots";
        Fault::new(FaultKind::NotNow, message)
    })
}

fn no_list() -> Fault {
    let message = "no server of the cluster lists its slots";
    Fault::new(FaultKind::NotSent, message)
}

/// Connects to a cluster by finding its servers.
pub(super) struct ClusterConnector(pub(super) Arc<Servers>);

impl Connector for ClusterConnector {
    fn connect(&self, _timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let servers = Arc::clone(&self.0);
        Box::pin(async move {
            servers.pauses.lock().begin(Instant::now(), random());
            servers.enter().await?;
            Ok(Box::new(NoServer(servers)) as Box<dyn Connection>)
        })
    }

    fn address(&self) -> Option<String> {
        self.0.connector.address()
    }
}

/// Stands for the server of slots that have none.
struct NoServer(Arc<Servers>);

impl Connection for NoServer {
    fn call(&self, _: Command) -> ConnectionFuture<Reply> {
        let servers = Arc::clone(&self.0);
        Box::pin(async move {
            servers.look_for_slots();
            let message = "no server of the cluster has the slot";
            Err(Fault::new(FaultKind::SlotNotNow, message))
        })
    }
}

/// Connects to one server of a cluster.
struct MemberConnector {
    servers: Weak<Servers>,
    address: Address,
}

impl Connector for MemberConnector {
    /// A server that is connected to again was away: another one may have taken its slots.
    fn connect(&self, timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let Some(servers) = self.servers.upgrade() else {
            return Box::pin(std::future::ready(Err(no_list())));
        };
        servers.look_for_slots();
        servers.connector.connect_to(&self.address, timeout)
    }

    fn address(&self) -> Option<String> {
        let (host, port) = &self.address;
        Some(format!("{host}:{port}"))
    }
}
