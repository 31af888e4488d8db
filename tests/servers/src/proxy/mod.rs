//! A wire between a client and a server that does harm when told to.

mod faults;
mod listener;
mod pump;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use faults::Faults;
use listener::Listener;
use pump::Pairs;

use crate::port::Port;

/// A TCP proxy on 127.0.0.1 in front of a port on 127.0.0.1.
///
/// It runs on threads of its own and so works the same whatever the test's runtime does. All faults can be changed at
/// any time, also together, and hold for open connections as well as for new ones.
///
/// A "reply" is what arrives from the server in one piece. To a client that waits for each answer this is one answer;
/// of a pipeline it may be several. When it is dropped, all connections are reset.
#[derive(Debug)]
pub struct Proxy {
    listener: Listener,
    wire: Arc<Wire>,
    port: Port,
}

/// What the threads share.
#[derive(Debug)]
struct Wire {
    target: AtomicU16,
    faults: Faults,
    pairs: Pairs,
    accepted: AtomicU64,
    closed: AtomicBool,
}

impl Wire {
    fn target(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.target.load(Ordering::SeqCst)).into()
    }
}

impl Proxy {
    /// A proxy without faults. Whether something listens on the target matters only when a client connects.
    ///
    /// # Panics
    ///
    /// If there is no port to listen on.
    #[must_use]
    pub fn start(target: u16) -> Self {
        let port = Port::claim();
        let wire = Arc::new(Wire {
            target: AtomicU16::new(target),
            faults: Faults::default(),
            pairs: Pairs::default(),
            accepted: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let listener = Listener::new(port.number(), Arc::clone(&wire));
        Self { listener, wire, port }
    }

    /// Where clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The same, for a server that asks for no password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Leads new connections to another port.
    pub fn retarget(&self, target: u16) {
        self.wire.target.store(target, Ordering::SeqCst);
    }

    /// Holds each reply for this long after its arrival; 0 for not at all. Replies do not wait for one another.
    pub fn delay_replies(&self, delay: Duration) {
        self.wire.faults.change(|now| now.delay = delay);
    }

    /// Swallows all replies, for good, while requests are passed on.
    pub fn drop_replies(&self, on: bool) {
        self.wire.faults.change(|now| now.swallow = on);
    }

    /// Resets the connection instead of passing on the next reply: the server has carried the request out, and the
    /// client cannot know. So often in all; each one takes one connection, with everything in flight on it.
    ///
    /// Answers to what a client says when it connects are replies as well: set this when it is connected.
    pub fn cut_replies(&self, times: u32) {
        self.wire.faults.change(|now| now.cuts = times);
    }

    /// How many of those cuts are still to come.
    #[must_use]
    pub fn cuts_left(&self) -> u32 {
        self.wire.faults.now().cuts
    }

    /// Passes these bytes on in the place of each reply, until told otherwise.
    pub fn replace_replies(&self, bytes: Option<&[u8]>) {
        self.wire.faults.change(|now| now.garbage = bytes.map(Into::into));
    }

    /// Passes nothing either way, while all connections stay open and new ones are accepted: a half-open wire. Afterwards
    /// what was held goes on its way, as TCP's retransmission would do it.
    pub fn blackhole(&self, on: bool) {
        self.wire.faults.change(|now| now.blackhole = on);
    }

    /// Has new connections refused by the system, as when nothing listens. Open ones stay.
    pub fn refuse(&self, on: bool) {
        self.listener.refuse(on);
    }

    /// Resets all open connections (`RST`), on both sides. What was held is lost. New ones are accepted.
    pub fn reset_all(&self) {
        self.wire.pairs.reset_all();
        self.wire.faults.wake();
    }

    /// Ends all faults. Replies that were swallowed and connections that were cut are not brought back.
    pub fn heal(&self) {
        self.wire.faults.change(|now| *now = faults::State::default());
        self.refuse(false);
    }

    /// How many connections clients have made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.wire.accepted.load(Ordering::SeqCst)
    }

    /// How many of them are open.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.wire.pairs.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.wire.closed.store(true, Ordering::SeqCst);
        self.listener.refuse(true);
        self.reset_all();
    }
}
