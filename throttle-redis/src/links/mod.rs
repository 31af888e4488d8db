//! The links to the servers of the store: one to a single server, or one to each server of a
//! cluster.

pub(crate) mod hash_slot;
mod moving_slots;
pub(crate) mod script_call;
pub(crate) mod servers;
mod slot_map;

use std::sync::Arc;

use tokio::time::Instant;

use crate::counters::Counters;
use crate::link::call_error::CallError;
use crate::link::connection::{Command, Connector, Fault, FaultKind, Reply};
use crate::link::{Deadlines, Link, LinkKind, LinkSettings};
use moving_slots::MovingSlots;
use servers::{ClusterConnector, Servers};

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
        counters: Arc<Counters>,
    ) -> Self {
        let settings = |kind| LinkSettings {
            deadlines,
            threshold,
            kind,
            counters: Arc::clone(&counters),
        };
        let (entry, servers) = if connector.cluster().is_empty() {
            (Link::new(connector, settings(LinkKind::Single)), None)
        } else {
            let servers = Arc::new(Servers::new(connector, settings(LinkKind::Member)));
            let finder = Box::new(ClusterConnector(Arc::clone(&servers)));
            (Link::new(finder, settings(LinkKind::Finder)), Some(servers))
        };
        Self {
            entry,
            servers,
            moving: MovingSlots::default(),
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
    pub(crate) async fn resolve(
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
    /// because it waits for a decision: if it counted as unhealthy, a process that receives
    /// requests only while it is healthy would wait for ever.
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
        let link = self.resolve(slot, b"", until).await?;
        let (mut target, mut redirections) = (Target::of(link), 0);
        loop {
            let live = target.link.live(until).await?;
            let command = command.clone().after_asking(target.asking);
            match live.call(command, until).await {
                Err(CallError::Fault(fault)) if redirections < REDIRECTIONS => {
                    let next = self.follow(slot, &fault);
                    target = next.ok_or(CallError::Fault(fault))?;
                    redirections += 1;
                }
                answer => return answer,
            }
        }
    }

    /// Asks for the slots of a cluster: a server that cannot decide at the moment may have lost
    /// them to another.
    fn look_for_slots(&self) {
        self.servers.iter().for_each(Servers::look_for_slots);
    }

    /// The server to which the answer to a command about a slot redirects. If the slot has moved
    /// there for good, it is that server's from now on.
    fn follow(&self, slot: u16, fault: &Fault) -> Option<Target> {
        let servers = self.servers.as_ref()?;
        let (link, asking) = match fault.kind() {
            FaultKind::Moved(address) => {
                // Others may have moved with it, and the server may not know the new address.
                servers.look_for_slots();
                (servers.move_slot(slot, address.as_ref()?), false)
            }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::link::tests::by_hand::{ByHand, HOME, fault, turns};

    const DEADLINE: Duration = Duration::from_millis(100);

    async fn connected(store: &ByHand) -> Links {
        let links = Links::new(
            Box::new(store.clone()),
            DEADLINE.into(),
            1,
            Counters::new(None),
        );
        store.connect(Ok(())).await;
        links
    }

    /// A cluster of two servers, each with half of the slots.
    async fn two() -> (ByHand, Links) {
        let store = ByHand::cluster();
        store.divide([(0, 8_191, "one"), (8_192, 16_383, "two")]);
        let links = connected(&store).await;
        (store, links)
    }

    #[tokio::test(start_paused = true)]
    async fn law_13_a_server_that_fails_suspends_no_call_to_another() {
        let (store, links) = two().await;
        let lost = CallError::Fault(fault(FaultKind::Lost));
        for (broken, healthy) in [(0, 16_383), (16_383, 0)] {
            assert!(links.is_healthy());
            links.of(broken).learn(b"key", None, Err(&lost));
            assert!(links.of(broken).permission().is_err());
            assert!(links.of(healthy).permission().is_ok() && !links.is_healthy());
            // It gives a sign of life.
            store.later().await.answer(Ok(Reply::Nil)).await;
            assert!(links.of(broken).permission().is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_of_a_cluster_that_is_found_at_last_closes() {
        let store = ByHand::cluster();
        let threshold = 1;
        let connector = Box::new(store.clone());
        let links = Links::new(connector, DEADLINE.into(), threshold, Counters::new(None));
        let resolving = links.resolve(7, b"key", Instant::now() + DEADLINE);
        let (resolved, ()) = tokio::join!(resolving, async {
            store.connect(Err(fault(FaultKind::NotSent))).await;
        });
        assert!(resolved.is_err() && links.entry.permission().is_err());
        while store.connecting().await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        store.connect(Ok(())).await;
        let permissions = [links.entry.permission(), links.entry.permission()];
        assert!(permissions.iter().all(Result::is_ok) && links.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_have_slots_no_more_are_left() {
        let (store, links) = two().await;
        let [one, two] = [0, 16_383].map(|slot| Arc::downgrade(&links.of(slot)));
        store.divide([(0, 16_383, "two")]);
        assert_eq!(links.all().await.expect("a list").len(), 1);
        turns().await;
        assert!(one.upgrade().is_none());
        let kept = two.upgrade().expect("it has slots");
        assert!(Arc::ptr_eq(&kept, &links.of(0)) && links.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_slot_has_moved_the_others_are_looked_for() {
        for address in [None, Some(("two".to_owned(), 1))] {
            let (store, links) = two().await;
            store.divide([(0, 16_383, "two")]);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(links.follow(0, &fault(FaultKind::Moved(address))));
            tokio::time::sleep(Duration::from_millis(100)).await;
            for slot in [0, 1] {
                assert!(Arc::ptr_eq(&links.of(slot), &links.of(16_383)), "{slot}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_server_is_away_another_one_lists_the_slots() {
        let (store, links) = two().await;
        store.refuse("one");
        store.divide([(0, 16_383, "two")]);
        let one = links.of(0);
        let lost = CallError::Fault(fault(FaultKind::Lost));
        let live = one.live(Instant::now() + DEADLINE).await;
        one.learn(b"key", live.ok().as_deref(), Err(&lost));
        assert!(Arc::ptr_eq(&one, &links.of(0)), "not at once");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(Arc::ptr_eq(&links.of(16_383), &links.of(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_know_its_address_is_the_one_that_was_asked() {
        let store = ByHand::cluster();
        store.divide([(0, 16_383, "")]);
        let links = connected(&store).await;
        let command = Command::new("GET");
        let until = Instant::now() + DEADLINE;
        let calling = links.call(7, command, until);
        let (_, sent) = tokio::join!(calling, async {
            let sent = store.next().await;
            let host = sent.host.clone();
            sent.answer(Ok(Reply::Nil)).await;
            host
        });
        assert_eq!(sent, HOME);
    }
}
