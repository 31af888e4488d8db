//! Reconnects, and asks for signs of life, while the link is broken.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::breaker::Breaker;
use super::call_error::CallError;
use super::connection::{Command, Fault, FaultKind, Route};
use super::live_connection::LiveConnection;
use super::{Link, Suspect};

/// How long an attempt to connect may take.
const CONNECT: Duration = Duration::from_millis(400);
/// The same for all servers of a cluster. The client waits for a server that hangs, and that server must not block the
/// others.
const CONNECT_CLUSTER: Duration = Duration::from_secs(1);

/// How long to wait for the slot map of a new connection.
const ASKING_FOR_SLOTS: Duration = Duration::from_millis(100);

/// A connection younger than this is not replaced for lack of a sign of life.
const YOUNG: Duration = Duration::from_millis(500);

/// No text has this digest.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// Redirections followed for a sign of life.
const SIGN_REDIRECTIONS: u32 = 2;

impl Link {
    /// Starts the task that reconnects, if the link is broken and no task is running.
    pub(crate) fn reconnect(self: &Arc<Self>) {
        let mut reconnecting = self.reconnecting.lock();
        if !reconnecting.is_at_work() && self.is_broken() {
            reconnecting.start(|number| tokio::spawn(reconnect(Arc::downgrade(self), number)));
        }
    }

    fn goes_on(&self, number: u64) -> bool {
        self.reconnecting.lock().report(number, self.deadline)
    }

    /// Whether the task may end. Checked under the lock, so that a request that finds the link broken after this starts
    /// another task.
    fn is_mended(&self) -> bool {
        let mut reconnecting = self.reconnecting.lock();
        let mended = !self.is_broken();
        if mended {
            reconnecting.end();
        }
        mended
    }

    fn is_broken(&self) -> bool {
        self.current.load().is_none() || self.breakers.iter().any(Breaker::is_open)
    }

    /// Opens a connection. If another task has taken over meanwhile, the connection is dropped: the runtime of this
    /// task stood still, and may do so again.
    async fn connect(&self, task: u64) -> Result<(), Fault> {
        let limit = if self.is_cluster() { CONNECT_CLUSTER } else { CONNECT };
        let connecting = timeout(limit, self.connector.connect()).await;
        let opened = connecting.unwrap_or_else(|_| Err(Fault::new(FaultKind::NotSent, "connecting took too long")));
        match opened {
            Ok(_) if !self.goes_on(task) => Ok(()),
            Ok(connection) => {
                let generation = self.generation.fetch_add(1, Ordering::Relaxed);
                let mut live = LiveConnection::new(connection, generation);
                if self.is_cluster() {
                    let until = Instant::now() + ASKING_FOR_SLOTS;
                    live.slot_map = live.ask_for_slots(Route::Any, until).await.unwrap_or_default();
                }
                self.current.store(Some(Arc::new(live)));
                self.counters.connected();
                self.attempts.send_modify(|attempts| {
                    attempts.connected = true;
                    attempts.why = None;
                });
                Ok(())
            }
            Err(fault) => {
                let fault = match self.connector.address() {
                    Some(address) => Fault::new(fault.kind().clone(), format!("{address}: {fault}")),
                    None => fault,
                };
                self.counters.connecting_failed();
                self.attempts.send_modify(|attempts| {
                    attempts.failed += 1;
                    attempts.why = Some(fault.clone());
                });
                Err(fault)
            }
        }
    }

    /// Asks for a sign of life for each open breaker. Returns whether all of them got one.
    async fn probe(self: &Arc<Self>) -> bool {
        let Some(live) = self.current.load_full() else { return false };
        let mut asking = JoinSet::new();
        for range in (0..self.breakers.len()).filter(|range| self.breakers[*range].is_open()) {
            let (link, live) = (Arc::clone(self), Arc::clone(&live));
            asking.spawn(async move {
                let alive = link.gives_sign_of_life(&live, range).await;
                if alive {
                    link.breakers[range].half_open();
                }
                alive
            });
        }
        let mut all = true;
        while let Some(alive) = asking.join_next().await {
            all &= alive.unwrap_or(false);
        }
        all
    }

    /// Whether to replace a connection that gave no sign of life. The connection of a cluster covers several servers.
    /// While the others name the silent server for its slots, a new connection would be no better, and while the client
    /// tries to reach that server it serves no request.
    async fn is_outdated(&self) -> bool {
        let Some(live) = self.current.load_full().filter(|_| self.is_cluster()) else { return true };
        let open = self.breakers.iter().zip(&self.suspects).filter(|(breaker, _)| breaker.is_open());
        let slots: Vec<u16> = open.map(|(_, suspect)| suspect.lock().slot).collect();
        let silent: Vec<_> = slots.iter().filter_map(|slot| live.slot_map.server_of(*slot)).collect();
        // It stays true if no server answers.
        let mut moved = true;
        for server in live.slot_map.routes_except(&silent) {
            if let Ok(now) = live.ask_for_slots(server, Instant::now() + self.deadline).await {
                // News of a failover spreads gradually: a client that asked a server that has not received it would
                // learn nothing.
                moved &= slots.iter().any(|slot| now.server_of(*slot) != live.slot_map.server_of(*slot));
            }
        }
        moved
    }

    /// Calls a script that no server has. A `PING` could be answered by a server that does not serve the slot, because
    /// a cluster client asks another server in place of a dead one; and the user may not be permitted to send it.
    async fn gives_sign_of_life(&self, live: &LiveConnection, range: usize) -> bool {
        let Suspect { slot, name } = self.suspects[range].lock().clone();
        let (until, mut route) = (Instant::now() + self.deadline, Route::Slot(slot));
        for _ in 0..=SIGN_REDIRECTIONS {
            let call = Command::new("EVALSHA").arg(NO_SCRIPT);
            let call = if self.is_cluster() { call.arg("1").arg(&name) } else { call.arg("0") };
            let Err(CallError::Fault(fault)) = live.call(call.to(route), until).await else { return false };
            if *fault.kind() == FaultKind::NoScript {
                return true;
            }
            let Some(redirection) = fault.redirection() else { return false };
            route = redirection;
        }
        false
    }
}

/// Connects, and asks for signs of life, until the link works again.
async fn reconnect(link: Weak<Link>, number: u64) {
    let mut warned = false;
    let mut connected_at: Option<Instant> = None;
    loop {
        let going_on = link.upgrade().filter(|link| link.goes_on(number));
        let Some(wait) = going_on.map(|link| link.pauses.lock().wait()) else { return };
        tokio::time::sleep(wait).await;
        let Some(link) = link.upgrade().filter(|link| link.goes_on(number)) else { return };
        link.pauses.lock().begin();
        let stale = connected_at.is_none_or(|at| at.elapsed() > YOUNG);
        // A connection without a sign of life is replaced: its server may have gone silent, or another may have taken
        // its place.
        if link.current.load().is_none() || (!link.probe().await && stale && link.is_outdated().await) {
            if !link.goes_on(number) {
                return;
            }
            match link.connect(number).await {
                Ok(()) => {
                    connected_at = Some(Instant::now());
                    link.probe().await;
                }
                Err(fault) if !warned => {
                    warned = true;
                    tracing::warn!(%fault, "the rate-limit store cannot be reached; trying on");
                }
                Err(_) => {}
            }
        }
        if link.is_mended() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::link::connection::by_hand::{ByHand, fault, turns};
    use crate::link::connection::{Reply, Route};

    const DEADLINE: Duration = Duration::from_millis(100);
    const KEY: &[u8] = b"key";
    /// At the first server of the cluster.
    const SLOT: u16 = 7;

    fn link(store: &ByHand) -> Arc<Link> {
        Link::new(Box::new(store.clone()), DEADLINE, 1)
    }

    fn slots(servers: [&str; 2]) -> Reply {
        let range = |(first, host): (i64, &str)| {
            let server = Reply::Array(vec![Reply::Bytes(host.into()), Reply::Int(6379)]);
            Reply::Array(vec![Reply::Int(first), Reply::Int(first + 8_191), server])
        };
        Reply::Array([0, 8_192].into_iter().zip(servers).map(range).collect())
    }

    /// A connected link whose store has failed about a key.
    async fn failed(store: &ByHand) -> Arc<Link> {
        let link = link(store);
        store.open(Ok(())).await;
        if link.is_cluster() {
            store.next().await.answer(Ok(slots(["a", "b"]))).await;
        }
        assert!(link.is_healthy());
        link.learn(SLOT, KEY, None, Err(&CallError::Fault(fault(FaultKind::Other))));
        assert!(!link.is_healthy());
        link
    }

    fn address(host: &str) -> Route {
        Route::Address { host: host.to_owned(), port: 6379, asking: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_of_life_is_a_call_of_a_script_that_no_server_has() {
        let store = ByHand::default();
        let link = failed(&store).await;
        let sent = store.later().await;
        assert_eq!(sent.words(), ["EVALSHA", NO_SCRIPT, "0"]);
        sent.answer(Err(fault(FaultKind::NoScript))).await;
        assert!(link.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_asked_about_the_key_that_failed_where_it_redirects_to() {
        let store = ByHand::cluster();
        let link = failed(&store).await;
        let sent = store.later().await;
        assert_eq!(sent.words(), ["EVALSHA", NO_SCRIPT, "1", "key"]);
        assert_eq!(sent.command.route(), &Route::Slot(SLOT));
        sent.answer(Err(fault(FaultKind::Moved(Some(("b".to_owned(), 6379)))))).await;
        let sent = store.next().await;
        assert_eq!((sent.words().len(), sent.command.route()), (4, &address("b")));
        sent.answer(Err(fault(FaultKind::NoScript))).await;
        assert!(link.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_sign_of_life_is_replaced_and_has_some_time_to_give_one() {
        let store = ByHand::default();
        let link = failed(&store).await;
        store.later().await.answer(Err(fault(FaultKind::Other))).await;
        assert!(!link.is_healthy());
        store.connect(Ok(())).await;
        let opened = Instant::now();
        while store.connecting().await == 0 {
            assert!(opened.elapsed() < 4 * YOUNG, "it is never replaced");
            if store.is_idle().await {
                sleep(Duration::from_millis(10)).await;
            } else {
                store.next().await.answer(Err(fault(FaultKind::Other))).await;
            }
        }
        assert!(opened.elapsed() > YOUNG);
        assert_eq!(link.counters.read().connections, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_to_connect_pause() {
        let store = ByHand::default();
        let link = link(&store);
        let (began, mut attempts) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(3) && attempts < 50 {
            if store.connecting().await > 0 {
                attempts += 1;
                store.connect(Err(fault(FaultKind::NotSent))).await;
            } else {
                sleep(Duration::from_millis(10)).await;
            }
        }
        assert!((8..=20).contains(&attempts), "{attempts} in three seconds");
        assert_eq!(link.counters.read().failed_connections, attempts);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_was_replaced_opens_no_connection() {
        let store = ByHand::default();
        let link = link(&store);
        turns().await;
        assert!(link.goes_on(2), "the next task takes over while the first one connects");
        store.connect(Ok(())).await;
        assert!(!link.is_connected() && link.counters.read().connections == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_was_replaced_while_it_asked_for_a_sign_of_life_ends() {
        let store = ByHand::default();
        let link = failed(&store).await;
        let sent = store.later().await;
        assert!(link.goes_on(99), "another task takes over");
        sent.answer(Err(fault(FaultKind::Other))).await;
        assert_eq!(store.connecting().await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_of_a_cluster_is_replaced_when_the_other_servers_name_another_for_the_slot() {
        let unanswered = || Err(fault(FaultKind::Lost));
        for (answer, replaced) in [(Ok(slots(["a", "b"])), false), (Ok(slots(["c", "b"])), true), (unanswered(), true)]
        {
            let store = ByHand::cluster();
            let link = failed(&store).await;
            let asking = tokio::spawn(async move { link.is_outdated().await });
            let sent = store.next().await;
            assert_eq!((sent.words().join(" "), sent.command.route()), ("CLUSTER SLOTS".to_owned(), &address("b")));
            assert!(store.is_idle().await, "the silent server is not asked");
            sent.answer(answer.clone()).await;
            assert_eq!(asking.await.expect("no panic"), replaced, "{answer:?}");
        }
    }
}
