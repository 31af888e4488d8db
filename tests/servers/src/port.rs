//! Ports that no other process uses, not even another test process that searches for one at this
//! moment.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

/// Below the ports that systems give to outgoing connections (32768 on Linux): such a connection
/// could otherwise take the port of a server that is down for a moment. A cluster's bus ports,
/// 10,000 higher, are below them too.
const FIRST: u16 = 10_100;
const COUNT: u16 = 9_800;
const BUS: u16 = 10_000;
const LISTEN_LIMIT: Duration = Duration::from_secs(5);

/// A TCP port on loopback that this process owns until this is dropped, whether or not a server
/// listens on it.
///
/// The claim is the UDP port of the same number, which Redis does not use: the system gives it to
/// one process only, and takes it back when that process ends.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claims: Vec<UdpSocket>,
}

impl Port {
    pub(crate) fn claim() -> Self {
        Self::search(&[0])
    }

    /// A port for a node of a cluster, which needs the one 10,000 higher as well.
    pub(crate) fn claim_with_bus() -> Self {
        Self::search(&[0, BUS])
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn bus(&self) -> u16 {
        self.number + BUS
    }

    /// Listens on the port.
    ///
    /// A process that another thread starts at this moment holds a copy of every open socket from
    /// its fork to its exec. Therefore a port can stay in use for some milliseconds after its
    /// socket has been closed.
    pub(crate) fn listen(number: u16) -> TcpListener {
        let start = Instant::now();
        loop {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, number)) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && start.elapsed() < LISTEN_LIMIT =>
                {
                    thread::sleep(Duration::from_millis(5));
                }
                bound => return bound.expect("a port that was claimed"),
            }
        }
    }

    /// Claims nothing, like a program that ignores claims and takes the port meanwhile.
    #[cfg(test)]
    pub(crate) fn without_claim(number: u16) -> Self {
        Self {
            number,
            _claims: Vec::new(),
        }
    }

    fn search(offsets: &[u16]) -> Self {
        for _ in 0..COUNT {
            let number = candidate();
            let claims: Option<Vec<_>> = offsets
                .iter()
                .map(|offset| claim(number + offset))
                .collect();
            if let Some(claims) = claims {
                return Self {
                    number,
                    _claims: claims,
                };
            }
        }
        panic!("no free port among {COUNT} from {FIRST} on");
    }
}

/// The next port to try: from a random start, so that processes rarely collide, and each port once
/// before any repeats.
fn candidate() -> u16 {
    static START: OnceLock<u64> = OnceLock::new();
    static STEP: AtomicU64 = AtomicU64::new(0);
    let start = START.get_or_init(|| RandomState::new().hash_one("port") >> 1);
    let place = (start + STEP.fetch_add(1, Ordering::Relaxed)) % u64::from(COUNT);
    FIRST + u16::try_from(place).expect("a remainder by a u16")
}

fn claim(number: u16) -> Option<UdpSocket> {
    let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    Some(claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_claimed_once() {
        let port = Port::claim_with_bus();
        assert!(claim(port.number()).is_none());
        assert!(claim(port.bus()).is_none());
    }

    #[test]
    fn listening_waits_until_the_port_is_free() {
        let port = Port::claim();
        let taken =
            TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).expect("a claimed port");
        let release = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(taken);
        });
        let listener = Port::listen(port.number());
        assert_eq!(
            listener.local_addr().expect("a bound socket").port(),
            port.number()
        );
        release.join().expect("a thread that only drops");
    }

    /// Another process may be faster than this one, but not every time.
    #[test]
    fn a_port_that_is_given_back_can_be_claimed_again() {
        let again = (0..50).any(|_| {
            let port = Port::claim_with_bus();
            let (number, bus) = (port.number(), port.bus());
            drop(port);
            claim(number).is_some() && claim(bus).is_some()
        });
        assert!(again);
    }
}
