//! Proxies that know neither RESP3 nor `SCRIPT`.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use throttle_core::Backend;
use throttle_redis::{Connector, FaultKind, Pool, RedisBackend, Single};
use throttle_test_servers::Server;

use super::{PATIENT, day, decides, whole_message};
use crate::common::LimitTree;

/// How a proxy refuses a command that it does not know.
#[derive(Clone, Copy)]
enum Refusal {
    /// As older versions of Envoy do.
    Says(&'static str),
    /// As twemproxy does.
    Ends,
}

/// Starts a proxy before a server, for as long as the test runs. Returns its URL.
fn proxy(server: &Server, unknown: &'static [&'static str], refusal: Refusal) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, target) = (
        format!("redis://{}", listener.local_addr().unwrap()),
        server.port(),
    );
    thread::spawn(move || {
        for client in listener.incoming() {
            let server = TcpStream::connect(("127.0.0.1", target)).unwrap();
            thread::spawn(move || carry(&client.unwrap(), &server, unknown, refusal));
        }
    });
    url
}

/// Passes commands and answers, one after the other.
fn carry(
    mut client: &TcpStream,
    mut server: &TcpStream,
    unknown: &[&str],
    refusal: Refusal,
) -> io::Result<()> {
    let (mut commands, mut answers) = (BufReader::new(client), BufReader::new(server));
    loop {
        let command = value(&mut commands)?;
        let text = String::from_utf8_lossy(&command).to_uppercase();
        let name = text.lines().nth(2).unwrap_or_default();
        if !unknown.contains(&name) {
            server.write_all(&command)?;
            client.write_all(&value(&mut answers)?)?;
            continue;
        }
        match refusal {
            Refusal::Says(words) => client.write_all(format!("-{words}\r\n").as_bytes())?,
            Refusal::Ends => return client.shutdown(std::net::Shutdown::Both),
        }
    }
}

/// The bytes of one value of RESP2.
fn value(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if from.read_until(b'\n', &mut bytes)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let count = std::str::from_utf8(&bytes[1..]).ok();
    let count: i64 = count
        .and_then(|text| text.trim_end().parse().ok())
        .unwrap_or(0);
    match bytes[0] {
        b'$' if count >= 0 => {
            let mut text = vec![0; usize::try_from(count).unwrap() + 2];
            from.read_exact(&mut text)?;
            bytes.extend(text);
        }
        b'*' => {
            for _ in 0..count {
                bytes.extend(value(from)?);
            }
        }
        _ => {}
    }
    Ok(bytes)
}

const RESP3: &[&str] = &["HELLO", "CLIENT", "SCRIPT"];

#[tokio::test]
async fn a_proxy_that_refuses_hello_in_any_way_is_connected_to_in_resp2() {
    let server = Server::start();
    for refusal in [
        Refusal::Says("ERR unsupported command"),
        Refusal::Says("unsupported command"),
        Refusal::Says("ERR unknown command 'hello', with args beginning with: 3"),
        Refusal::Ends,
    ] {
        let url = proxy(&server, RESP3, refusal);
        let connectors: [RedisBackend; 2] = [
            backend(Single::new(&url).unwrap()),
            backend(Pool::new(&url, 2).unwrap()),
        ];
        for backend in connectors {
            decides(&backend).await;
            server.command(&["SCRIPT", "FLUSH"]);
        }
    }
}

fn backend(connector: impl Connector) -> RedisBackend {
    let builder = RedisBackend::builder(connector).deadline(PATIENT);
    builder.build().unwrap()
}

/// A backend that keeps its connection in RESP2 would not notice when it ends.
#[tokio::test]
async fn a_server_that_ends_a_connection_once_is_connected_to_in_resp3() {
    let server = Server::start();
    let wire = throttle_test_servers::Proxy::start(server.port());
    wire.cut_replies(1);
    let backend = backend(Single::new(&wire.url()).unwrap());
    decides(&backend).await;
    assert_eq!(wire.cuts_left(), 0);
    wire.reset_all();
    let began = Instant::now();
    while backend.stats().connections < 2 {
        assert!(began.elapsed() < PATIENT, "the end is not noticed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn wrong_credentials_are_refused_by_a_proxy_as_by_a_server() {
    let server = Server::builder().password("s3cret").start();
    let url = proxy(&server, RESP3, Refusal::Says("ERR unsupported command"));
    for (user, why) in [
        ("", "NOAUTH"),
        (":hunter2@", "Password authentication failed"),
    ] {
        let url = url.replace("//", &format!("//{user}"));
        let fault = Single::new(&url).unwrap().connect(PATIENT).await.err();
        let fault = fault.expect("no such user");
        let is_refused = [FaultKind::Refused, FaultKind::NotSent].contains(fault.kind());
        assert!(is_refused && fault.to_string().contains(why), "{fault}");
    }
}

#[tokio::test]
async fn errors_say_what_a_proxy_without_scripts_said() {
    let server = Server::start();
    let words = Refusal::Says("ERR the command is not for this plan");
    let backend = backend(
        Single::new(&proxy(
            &server,
            &["HELLO", "CLIENT", "EVAL", "EVALSHA"],
            words,
        ))
        .unwrap(),
    );
    let limits = LimitTree::new(&backend, day(3));
    let decided = backend.decide(&limits.prepared, &limits.calls("ada", 1));
    let text = whole_message(&decided.await.unwrap_err());
    assert!(
        text.contains("ERR the command is not for this plan"),
        "{text}"
    );
}
