//! Servers: their answers, their faults and their options.

use std::time::Duration;

use throttle_test_servers::redis::{self, Client, RedisResult};
use throttle_test_servers::{Server, Shared};

/// The answer to a client that does not retry.
fn ping(url: &str) -> RedisResult<String> {
    let mut connection =
        Client::open(url)?.get_connection_with_timeout(Duration::from_millis(200))?;
    connection.set_read_timeout(Some(Duration::from_millis(200)))?;
    redis::cmd("PING").query(&mut connection)
}

#[test]
fn a_server_is_empty_at_first_and_after_a_restart_on_the_same_port() {
    let server = Server::start();
    assert_eq!(
        (ping(&server.url()).unwrap().as_str(), server.dbsize()),
        ("PONG", 0)
    );
    server.command(&["SET", "key", "1"]);
    assert_eq!(server.dbsize(), 1);
    let (port, process) = (server.port(), server.process_id());
    server.kill();
    assert!(ping(&server.url()).unwrap_err().is_connection_refusal());
    assert!(!server.is_running());
    server.restart();
    assert_eq!(
        (
            ping(&server.url()).unwrap().as_str(),
            server.dbsize(),
            server.port()
        ),
        ("PONG", 0, port)
    );
    assert_ne!(server.process_id(), process);
}

#[test]
fn keys_that_would_stay_are_named() {
    let server = Server::start();
    for number in 0..2500 {
        server.command(&["SET", &format!("brief{number}"), "1", "PX", "600000"]);
    }
    assert_eq!(
        (server.keys("*").len(), server.keys("brief1?").len()),
        (2500, 10)
    );
    assert!(server.keys_without_ttl().is_empty());
    server.command(&["SET", "lasting", "1"]);
    assert_eq!(server.keys_without_ttl(), ["lasting"]);
}

#[test]
fn shared_prefixes_keep_apart() {
    let (one, other) = (Shared::new(), Shared::new());
    assert_eq!(one.process_id(), other.process_id());
    one.command(&["SET", &format!("{}:a", one.prefix()), "1"]);
    other.command(&[
        "SET",
        &format!("{{{}}}:a", other.prefix()),
        "1",
        "PX",
        "600000",
    ]);
    assert_eq!((one.own_keys().len(), other.own_keys().len()), (1, 1));
    assert_eq!(
        (
            one.own_keys_without_ttl().len(),
            other.own_keys_without_ttl().len()
        ),
        (1, 0)
    );
}
