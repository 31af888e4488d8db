//! Accepts or refuses connections.

use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::port::Port;
use crate::proxy::{Wire, pump};

/// A port that is listened on, except while connections are to be refused.
#[derive(Debug)]
pub(super) struct Listener {
    port: u16,
    wire: Arc<Wire>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    ending: Arc<AtomicBool>,
}

impl Listener {
    pub(super) fn new(port: u16, wire: Arc<Wire>) -> Self {
        let listener = Self {
            port,
            wire,
            running: Mutex::new(None),
        };
        listener.refuse(false);
        listener
    }

    /// Only a port without a listener refuses connections, so the listener is closed, and opened
    /// again later.
    pub(super) fn refuse(&self, on: bool) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match running.take() {
            Some(now) if on => now.end(self.port),
            Some(now) => *running = Some(now),
            None if on => {}
            None => *running = Some(Running::start(self.port, &self.wire)),
        }
    }
}

impl Running {
    fn start(port: u16, wire: &Arc<Wire>) -> Self {
        let socket = Port::listen(port);
        let (wire, ending) = (Arc::clone(wire), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&ending);
        let thread = thread::spawn(move || {
            for client in socket.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    wire.accepted.fetch_add(1, Ordering::SeqCst);
                    pump::start(&wire, client);
                }
            }
        });
        Self { thread, ending }
    }

    /// Connects once, because the thread checks `ending` only when a client connects.
    fn end(self, port: u16) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let _ = self.thread.join();
    }
}
