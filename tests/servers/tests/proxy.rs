//! The proxy: each fault has the effect that its name says, for the client on one side and the
//! server on the other.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use throttle_test_servers::{Proxy, Server};

const INCR: &[u8] = b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";

/// A client that only sends and reads bytes.
struct Raw(TcpStream);

impl Raw {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        Self(stream)
    }

    fn send(&mut self) {
        self.0.write_all(INCR).unwrap();
    }

    fn read(&mut self) -> Result<String, ErrorKind> {
        let mut buffer = [0; 64];
        let length = self.0.read(&mut buffer).map_err(|error| error.kind())?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    fn incr(&mut self) -> Result<String, ErrorKind> {
        self.send();
        self.read()
    }
}

fn start() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

/// How often the server has executed the request; requests under way get a moment to arrive.
fn executed(server: &Server, expected: u64) -> u64 {
    let start = Instant::now();
    loop {
        let count: Option<u64> = server.query(&["GET", "n"]);
        if count == Some(expected) || start.elapsed() > Duration::from_secs(5) {
            return count.unwrap_or(0);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn delayed_replies_do_not_wait_for_one_another() {
    let (_server, proxy) = start();
    let mut client = Raw::connect(&proxy);
    client.incr().unwrap();
    proxy.delay_replies(Duration::from_millis(300));
    let start = Instant::now();
    client.send();
    thread::sleep(Duration::from_millis(100));
    client.send();
    assert_eq!(client.read().unwrap(), ":2\r\n");
    let first = start.elapsed();
    assert_eq!(client.read().unwrap(), ":3\r\n");
    let second = start.elapsed();
    assert!(
        first >= Duration::from_millis(300) && second >= Duration::from_millis(400),
        "{first:?} {second:?}"
    );
    assert!(
        second < Duration::from_millis(580),
        "one delay after the other: {second:?}"
    );
    proxy.delay_replies(Duration::ZERO);
    let start = Instant::now();
    client.incr().unwrap();
    assert!(start.elapsed() < Duration::from_millis(200));
}

#[test]
fn a_cut_reply_was_carried_out_and_the_next_connection_is_whole() {
    let (server, proxy) = start();
    let (mut one, mut other) = (Raw::connect(&proxy), Raw::connect(&proxy));
    one.incr().unwrap();
    proxy.cut_replies(2);
    for (count, client) in (2..).zip([&mut one, &mut other]) {
        assert_eq!(client.incr().unwrap_err(), ErrorKind::ConnectionReset);
        assert_eq!(executed(&server, count), count);
    }
    assert_eq!(proxy.cuts_left(), 0);
    assert_eq!(Raw::connect(&proxy).incr().unwrap(), ":4\r\n");
}

#[test]
fn a_reset_reaches_a_client_that_only_waits() {
    let (server, proxy) = start();
    let mut clients: Vec<Raw> = (0..5).map(|_| Raw::connect(&proxy)).collect();
    for client in &mut clients {
        client.incr().unwrap();
    }
    proxy.delay_replies(Duration::from_secs(60));
    clients[0].send();
    assert_eq!(executed(&server, 6), 6);
    let start = Instant::now();
    proxy.reset_all();
    for client in &mut clients {
        assert_eq!(client.read().unwrap_err(), ErrorKind::ConnectionReset);
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "also the one with a reply that is held"
    );
    assert_eq!(proxy.open_connections(), 0);
    proxy.heal();
    assert_eq!(Raw::connect(&proxy).incr().unwrap(), ":7\r\n");
}
