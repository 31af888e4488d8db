//! A store whose answers a test gives by hand, for orders and instants that no real server can be
//! made to keep.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::counters::Counters;
use crate::link::connection::{
    Address, Command, Connection, ConnectionFuture, Connector, Fault, FaultKind, Reply,
};
use crate::link::{Deadlines, Link, LinkKind, LinkSettings};

/// The host of the server that a cluster is entered by, and that has all slots unless a test says
/// otherwise.
pub(crate) const HOME: &str = "home";

/// Clones are the same store.
#[derive(Clone, Default)]
pub(crate) struct ByHand {
    is_cluster: bool,
    /// The host that a connection leads to, on a cluster.
    host: String,
    asked: Arc<Mutex<Asked>>,
}

/// What the test has not answered yet.
#[derive(Default)]
struct Asked {
    connecting: VecDeque<oneshot::Sender<Result<(), Fault>>>,
    sent: VecDeque<Sent>,
    /// Whether a cluster was connected to: the other connections to it are opened by themselves.
    is_entered: bool,
    /// The host of a cluster that cannot be reached.
    refused: Option<&'static str>,
    /// How a cluster lists its slots.
    slots: Option<Reply>,
    /// What the latest connection calls when it ends.
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

/// A command that was sent.
pub(crate) struct Sent {
    /// The host that it was sent to, on a cluster.
    pub(crate) host: String,
    pub(crate) command: Command,
    answer: oneshot::Sender<Result<Reply, Fault>>,
}

/// A link to the store, which is the only server or one of a cluster.
pub(crate) fn link(store: &ByHand, deadlines: Deadlines, threshold: u32) -> Arc<Link> {
    let settings = LinkSettings {
        deadlines,
        threshold,
        kind: match store.is_cluster {
            true => LinkKind::Member,
            false => LinkKind::Single,
        },
        counters: Counters::new(None),
    };
    Link::new(Box::new(store.clone()), settings)
}

/// Lets every task run until it waits. The paused clock stands still meanwhile.
pub(crate) async fn turns() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn fault(kind: FaultKind) -> Fault {
    Fault::new(kind, "by hand")
}

impl ByHand {
    pub(crate) fn cluster() -> Self {
        let cluster = Self {
            is_cluster: true,
            ..Self::default()
        };
        cluster.divide([(0, 16_383, HOME)]);
        cluster
    }

    /// Divides the slots of a cluster among hosts.
    pub(crate) fn divide<const N: usize>(&self, ranges: [(u16, u16, &str); N]) {
        let server = |host: &str| Reply::Array(vec![Reply::Bytes(host.into()), Reply::Int(1)]);
        let range = |(first, last, host)| {
            let [first, last] = [first, last].map(|slot: u16| Reply::Int(slot.into()));
            Reply::Array(vec![first, last, server(host)])
        };
        let slots = ranges.map(range).to_vec();
        self.asked.lock().slots = Some(Reply::Array(slots));
    }

    /// Divides the slots between two hosts, so that these two keys are at different ones.
    pub(crate) fn part(&self, tags: [&str; 2]) {
        let slots = tags.map(|tag| crate::links::hash_slot::of(tag.as_bytes()));
        let last = slots[0].min(slots[1]);
        self.divide([(0, last, "one"), (last + 1, 16_383, "two")]);
    }

    /// Refuses connections to a host of a cluster from now on.
    pub(crate) fn refuse(&self, host: &'static str) {
        self.asked.lock().refused = Some(host);
    }

    /// How many attempts to connect wait for an answer.
    pub(crate) async fn connecting(&self) -> usize {
        turns().await;
        self.asked.lock().connecting.len()
    }

    /// Answers the first attempt to connect that waits.
    pub(crate) async fn connect(&self, answer: Result<(), Fault>) {
        turns().await;
        let connecting = self
            .asked
            .lock()
            .connecting
            .pop_front()
            .expect("an attempt to connect");
        let _ = connecting.send(answer);
        turns().await;
    }

    /// The first command that waits for an answer.
    pub(crate) async fn next(&self) -> Sent {
        turns().await;
        self.asked
            .lock()
            .sent
            .pop_front()
            .expect("a command that waits for an answer")
    }

    /// Lets time pass until a command is sent.
    pub(crate) async fn later(&self) -> Sent {
        for _ in 0..1_000 {
            if !self.is_idle().await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.next().await
    }

    /// Ends the latest connection.
    pub(crate) fn end_connection(&self) {
        self.take_end()();
    }

    /// What ends the latest connection.
    pub(crate) fn take_end(&self) -> Box<dyn FnOnce() + Send> {
        self.asked
            .lock()
            .on_end
            .take()
            .expect("a connection in use")
    }

    /// Whether no command waits for an answer.
    pub(crate) async fn is_idle(&self) -> bool {
        turns().await;
        self.asked.lock().sent.is_empty()
    }
}

impl Connector for ByHand {
    fn connect(&self, _timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let store = self.clone();
        Box::pin(async move {
            let (connecting, connected) = oneshot::channel();
            store.asked.lock().connecting.push_back(connecting);
            connected
                .await
                .unwrap_or_else(|_| Err(fault(FaultKind::NotSent)))?;
            store.asked.lock().is_entered = true;
            Ok(Box::new(store) as Box<dyn Connection>)
        })
    }

    fn cluster(&self) -> Vec<Address> {
        let home = self.is_cluster.then(|| (HOME.to_owned(), 1));
        home.into_iter().collect()
    }

    fn connect_to(
        &self,
        server: &Address,
        timeout: Duration,
    ) -> ConnectionFuture<Box<dyn Connection>> {
        let mut store = self.clone();
        store.host.clone_from(&server.0);
        if !store.asked.lock().is_entered {
            return Connector::connect(&store, timeout);
        }
        if store.asked.lock().refused == Some(&server.0) {
            return Box::pin(std::future::ready(Err(fault(FaultKind::NotSent))));
        }
        Box::pin(async { Ok(Box::new(store) as Box<dyn Connection>) })
    }
}

impl Connection for ByHand {
    fn call(&self, command: Command) -> ConnectionFuture<Reply> {
        let store = self.clone();
        if command.args().eq([&b"CLUSTER"[..], b"SLOTS"]) {
            let slots = store.asked.lock().slots.clone();
            return Box::pin(std::future::ready(
                slots.ok_or_else(|| fault(FaultKind::Other)),
            ));
        }
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let sent = Sent {
                host: store.host.clone(),
                command,
                answer,
            };
            store.asked.lock().sent.push_back(sent);
            answered
                .await
                .unwrap_or_else(|_| Err(fault(FaultKind::Lost)))
        })
    }

    fn on_end(&self, notify: Box<dyn FnOnce() + Send>) {
        self.asked.lock().on_end = Some(notify);
    }
}

impl Sent {
    pub(crate) fn words(&self) -> Vec<String> {
        self.command
            .args()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    /// The names of the keys that a script is called on.
    pub(crate) fn keys(&self) -> Vec<String> {
        let words = self.words();
        assert_eq!(words[0], "EVALSHA", "a script call");
        let count: usize = words[2].parse().expect("a number of keys");
        words[3..3 + count].to_vec()
    }

    pub(crate) async fn answer(self, answer: Result<Reply, Fault>) {
        let _ = self.answer.send(answer);
        turns().await;
    }

    /// Answers that every request of the call is admitted, each about one key that was not used
    /// before.
    pub(crate) async fn admit(self) {
        self.admit_unread();
        turns().await;
    }

    /// Like [`admit`](Self::admit), but returns before any task runs.
    pub(crate) fn admit_unread(self) {
        let mut reply = 1_790_000_000_000_000_f64.to_le_bytes().to_vec();
        self.keys().iter().for_each(|_| reply.extend(b"A\0\0\0\0"));
        let _ = self.answer.send(Ok(Reply::Bytes(reply)));
    }
}
