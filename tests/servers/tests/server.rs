//! Servers: their answers, their faults and their options.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use throttle_test_servers::redis::{self, Client, ErrorKind, RedisResult, ServerErrorKind};
use throttle_test_servers::{Server, Shared};

/// The answer to a client that does not retry.
fn ping(url: &str) -> RedisResult<String> {
    let mut connection = Client::open(url)?.get_connection_with_timeout(Duration::from_millis(200))?;
    connection.set_read_timeout(Some(Duration::from_millis(200)))?;
    redis::cmd("PING").query(&mut connection)
}

#[test]
fn a_server_is_empty_at_first_and_after_a_restart_on_the_same_port() {
    let server = Server::start();
    assert_eq!((ping(&server.url()).unwrap().as_str(), server.dbsize()), ("PONG", 0));
    server.command(&["SET", "key", "1"]);
    assert_eq!(server.dbsize(), 1);
    let (port, process) = (server.port(), server.process_id());
    server.kill();
    assert!(ping(&server.url()).unwrap_err().is_connection_refusal());
    assert!(!server.is_running());
    server.restart();
    assert_eq!((ping(&server.url()).unwrap().as_str(), server.dbsize(), server.port()), ("PONG", 0, port));
    assert_ne!(server.process_id(), process);
}

#[test]
fn a_stopped_server_takes_connections_and_answers_when_it_goes_on() {
    let server = Server::start();
    server.stop();
    assert!(!server.is_running());
    assert!(ping(&server.url()).unwrap_err().is_timeout());
    server.cont();
    assert_eq!(ping(&server.url()).unwrap(), "PONG");
}

#[test]
fn keys_that_would_stay_are_named() {
    let server = Server::start();
    for number in 0..2500 {
        server.command(&["SET", &format!("brief{number}"), "1", "PX", "600000"]);
    }
    assert_eq!((server.keys("*").len(), server.keys("brief1?").len()), (2500, 10));
    assert!(server.keys_without_ttl().is_empty());
    server.command(&["SET", "lasting", "1"]);
    assert_eq!(server.keys_without_ttl(), ["lasting"]);
}

#[test]
fn processor_time_grows_with_work() {
    let server = Server::start();
    let before = server.cpu_time();
    server.command(&["EVAL", "local n = 0 for i = 1, 2e6 do n = n + i end return n", "0"]);
    let used = server.cpu_time() - before;
    assert!(used > Duration::from_millis(1), "{used:?}");
    assert!(used < Duration::from_secs(10), "{used:?}");
}

#[test]
fn options_take_effect() {
    let server = Server::builder().arg("--maxmemory", "1mb").arg("--maxmemory-policy", "noeviction").start();
    let memory = |server: &Server| server.query::<Vec<String>>(&["CONFIG", "GET", "maxmemory"]);
    assert_eq!(memory(&server)[1], "1048576");
    let full = server
        .try_query::<()>(&["SET", "key", &"x".repeat(1 << 20)])
        .and_then(|()| server.try_query::<()>(&["SET", "other", "1"]));
    assert_eq!(full.unwrap_err().code(), Some("OOM"));
    server.config_set("maxmemory", "0");
    assert_eq!(memory(&server)[1], "0");
}

#[test]
fn passwords_and_users_are_asked_for() {
    let server = Server::builder().password("open").user("web", "on >secret ~app:* +@read +ping").start();
    assert_eq!(ping(&server.url()).unwrap(), "PONG");
    let bare = format!("redis://127.0.0.1:{}", server.port());
    assert_eq!(ping(&bare).unwrap_err().code(), Some("NOAUTH"));
    assert_eq!(ping(&server.url_of("web", "wrong")).unwrap_err().kind(), ErrorKind::AuthenticationFailed);

    let mut web = Client::open(server.url_of("web", "secret")).unwrap().get_connection().unwrap();
    assert_eq!(redis::cmd("GET").arg("app:1").query::<Option<String>>(&mut web).unwrap(), None);
    for refused in [redis::cmd("GET").arg("other"), redis::cmd("SET").arg("app:1").arg(1)] {
        let error = refused.query::<()>(&mut web).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Server(ServerErrorKind::NoPerm), "{error}");
    }
}

#[test]
fn tls_is_spoken_and_the_certificate_holds() {
    let server = Server::builder().tls().start();
    let address = server.tls_url();
    let (host, port) = address.strip_prefix("rediss://").and_then(|rest| rest.split_once(':')).unwrap();
    let file = env::temp_dir().join(format!("throttle-authority-{port}.pem"));
    fs::File::create(&file).unwrap().write_all(server.tls().authority.as_bytes()).unwrap();
    let cli = |trusted: &[&str]| {
        let mut command = Command::new("redis-cli");
        let output = command.args(["-h", host, "-p", port, "--tls"]).args(trusted).arg("PING").output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(cli(&["--cacert", file.to_str().unwrap()]), "PONG");
    assert_ne!(cli(&[]), "PONG", "no other client trusts it");
    fs::remove_file(file).unwrap();
}

#[test]
fn shared_prefixes_keep_apart() {
    let (one, other) = (Shared::new(), Shared::new());
    assert_eq!(one.process_id(), other.process_id());
    one.command(&["SET", &format!("{}:a", one.prefix()), "1"]);
    other.command(&["SET", &format!("{{{}}}:a", other.prefix()), "1", "PX", "600000"]);
    assert_eq!((one.own_keys().len(), other.own_keys().len()), (1, 1));
    assert_eq!((one.own_keys_without_ttl().len(), other.own_keys_without_ttl().len()), (1, 0));
}

#[test]
fn many_starts_at_once_get_ports_of_their_own() {
    let start = Instant::now();
    let servers = thread::scope(|scope| {
        let starts: Vec<_> = (0..12).map(|_| scope.spawn(Server::start)).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect::<Vec<_>>()
    });
    for (number, server) in servers.iter().enumerate() {
        server.command(&["SET", &format!("only{number}"), "1"]);
        assert_eq!(server.info("process_id"), server.process_id().unwrap().to_string());
    }
    assert!(servers.iter().all(|server| server.dbsize() == 1));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
