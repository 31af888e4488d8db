//! One connection: its two streams, and the threads that carry bytes between them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::proxy::Wire;

/// A peer that hangs must not block a thread for ever, because the thread keeps the connection
/// open.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The two ends of a connection. Each exists once: a stream is closed when the last thread drops
/// it.
#[derive(Debug)]
pub(super) struct Pair {
    client: TcpStream,
    server: TcpStream,
    ended: AtomicBool,
    silent: AtomicBool,
}

impl Pair {
    /// A stream without lingering sends `RST` when it is closed, and nothing before. Closing it for
    /// reading, which the peer does not see, wakes the threads that read from it.
    fn reset(&self) {
        self.ended.store(true, Ordering::SeqCst);
        for stream in [&self.client, &self.server] {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    open: Mutex<HashMap<u64, Arc<Pair>>>,
    next: AtomicU64,
}

impl Pairs {
    /// Returns the connections, which are closed when no thread holds them any more.
    pub(super) fn reset_all(&self) -> Vec<Weak<Pair>> {
        let reset = |(_, pair): (_, Arc<Pair>)| {
            pair.reset();
            Arc::downgrade(&pair)
        };
        self.lock().drain().map(reset).collect()
    }

    pub(super) fn silence_all(&self) {
        self.lock()
            .values()
            .for_each(|pair| pair.silent.store(true, Ordering::SeqCst));
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn add(&self, pair: &Arc<Pair>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, Arc::clone(pair));
        number
    }

    fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Pair>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects to the server and starts to pass bytes. If there is no server, the client is reset.
pub(super) fn start(wire: &Arc<Wire>, client: TcpStream) {
    let server = TcpStream::connect(wire.target());
    let Ok(server) = server else {
        let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(PATIENCE));
    }
    let pair = Arc::new(Pair {
        client,
        server,
        ended: AtomicBool::new(false),
        silent: AtomicBool::new(false),
    });
    let number = wire.pairs.add(&pair);
    // A proxy that was dropped meanwhile has reset only the connections that it knew.
    if wire.closed.load(Ordering::SeqCst) {
        pair.reset();
    }
    let (sender, receiver) = mpsc::channel();
    let requests = spawn(wire, &pair, carry_requests);
    let replies = spawn(wire, &pair, move |wire, pair| {
        read_replies(wire, pair, &sender);
    });
    let writes = spawn(wire, &pair, move |wire, pair| {
        write_replies(wire, pair, &receiver);
    });
    let wire = Arc::clone(wire);
    drop(pair);
    thread::spawn(move || {
        for part in [requests, replies, writes] {
            let _ = part.join();
        }
        wire.pairs.remove(number);
    });
}

fn spawn(
    wire: &Arc<Wire>,
    pair: &Arc<Pair>,
    work: impl FnOnce(&Wire, &Pair) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (wire, pair) = (Arc::clone(wire), Arc::clone(pair));
    thread::spawn(move || work(&wire, &pair))
}

fn carry_requests(wire: &Wire, pair: &Pair) {
    let mut buffer = [0; 16 * 1024];
    loop {
        let read = (&pair.client).read(&mut buffer);
        wire.faults.hold(None, || pair.has_ended());
        if pair.has_ended() {
            return;
        }
        match read {
            Ok(0) => {
                let _ = pair.server.shutdown(Shutdown::Write);
                return;
            }
            Ok(_) if pair.is_silent() => {}
            Ok(length) if (&pair.server).write_all(&buffer[..length]).is_ok() => {}
            Ok(_) | Err(_) => return end(wire, pair),
        }
    }
}

/// Resets a connection from one of its own threads; another thread may be holding a reply for it.
fn end(wire: &Wire, pair: &Pair) {
    pair.reset();
    wire.faults.wake();
}

/// Replies are read by a thread of their own, so that a reply's delay begins when it arrives,
/// whatever waits before it.
fn read_replies(wire: &Wire, pair: &Pair, sender: &Sender<(Instant, Vec<u8>)>) {
    let mut buffer = [0; 16 * 1024];
    loop {
        let read = (&pair.server).read(&mut buffer);
        let now = wire.faults.now();
        let mut reply = match read {
            _ if pair.has_ended() => return,
            Ok(0) => return,
            Ok(length) => buffer[..length].to_vec(),
            Err(_) => return end(wire, pair),
        };
        if wire.faults.take_cut() {
            return end(wire, pair);
        }
        if now.swallow || pair.is_silent() {
            continue;
        }
        if let Some(garbage) = now.garbage {
            reply = garbage.to_vec();
        }
        if sender.send((Instant::now() + now.delay, reply)).is_err() {
            return;
        }
    }
}

/// Ends when the reading thread has dropped its end and everything is written.
fn write_replies(wire: &Wire, pair: &Pair, receiver: &Receiver<(Instant, Vec<u8>)>) {
    for (due, reply) in receiver {
        wire.faults.hold(Some(due), || pair.has_ended());
        if pair.has_ended() {
            return;
        }
        if (&pair.client).write_all(&reply).is_err() {
            return end(wire, pair);
        }
    }
    wire.faults.hold(None, || pair.has_ended());
    // The server has ended. A client that does not read would write for ever if its direction
    // stayed open.
    if !pair.has_ended() {
        let _ = pair.client.shutdown(Shutdown::Both);
    }
}
