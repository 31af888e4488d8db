//! A connection between a client and a server that causes faults on request.

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
use crate::wait;

/// A TCP proxy on 127.0.0.1 in front of a port on 127.0.0.1.
///
/// It runs on threads of its own, and so works the same whatever the test's runtime does. All
/// faults can be changed at any time, also together, and hold for open connections as well as for
/// new ones.
///
/// A "reply" is what arrives from the server in one piece. For a client that waits for each answer
/// this is one answer; for a pipeline it may be several. When the proxy is dropped, all connections
/// are reset.
#[derive(Debug)]
pub struct Proxy {
    listener: Listener,
    wire: Arc<Wire>,
    port: Port,
}

/// The state that the threads share.
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
    /// A proxy without faults. Whether something listens on the target matters only when a client
    /// connects.
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
        Self {
            listener,
            wire,
            port,
        }
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The URL for clients, for a server without a password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Leads new connections to another port.
    pub fn retarget(&self, target: u16) {
        self.wire.target.store(target, Ordering::SeqCst);
    }

    /// Holds each reply for this long after its arrival; 0 for not at all. Replies do not wait for
    /// one another.
    pub fn delay_replies(&self, delay: Duration) {
        self.wire.faults.change(|now| now.delay = delay);
    }

    /// Swallows all replies, for good, while requests are passed on.
    pub fn drop_replies(&self, on: bool) {
        self.wire.faults.change(|now| now.swallow = on);
    }

    /// Resets the connection instead of passing on the next reply: the server has executed the
    /// request, and the client cannot know. This happens `times` times in all; each cut takes one
    /// connection, with everything in flight on it.
    ///
    /// Answers to a client's commands when it connects are replies as well: set this after it has
    /// connected.
    pub fn cut_replies(&self, times: u32) {
        self.wire.faults.change(|now| now.cuts = times);
    }

    /// The number of cuts that remain.
    #[must_use]
    pub fn cuts_left(&self) -> u32 {
        self.wire.faults.now().cuts
    }

    /// Passes these bytes on in place of each reply, until changed.
    pub fn replace_replies(&self, bytes: Option<&[u8]>) {
        self.wire
            .faults
            .change(|now| now.garbage = bytes.map(Into::into));
    }

    /// Passes nothing in either direction, while all connections stay open and new ones are
    /// accepted: a half-open connection. Afterwards the held bytes are passed on, as TCP's
    /// retransmission would do.
    pub fn blackhole(&self, on: bool) {
        self.wire.faults.change(|now| now.blackhole = on);
    }

    /// Passes nothing more over the connections that are open now, for good, and keeps them open: a
    /// firewall that has forgotten them. New connections work.
    pub fn silence_open(&self) {
        self.wire.pairs.silence_all();
    }

    /// Makes the system refuse new connections, as when nothing listens. Open ones stay.
    pub fn refuse(&self, on: bool) {
        self.listener.refuse(on);
    }

    /// Resets all open connections (`RST`), on both sides, and returns when they are closed. Held
    /// bytes are lost. New connections are accepted.
    pub fn reset_all(&self) {
        let pairs = self.wire.pairs.reset_all();
        self.wire.faults.wake();
        let is_closed = || pairs.iter().all(|pair| pair.strong_count() == 0);
        wait::within(pump::PATIENCE, || is_closed().then_some(()));
    }

    /// Ends all faults. Replies that were swallowed and connections that were cut are not restored.
    pub fn heal(&self) {
        self.wire
            .faults
            .change(|now| *now = faults::State::default());
        self.refuse(false);
    }

    /// The number of connections that clients have made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.wire.accepted.load(Ordering::SeqCst)
    }

    /// The number of them that are open.
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
