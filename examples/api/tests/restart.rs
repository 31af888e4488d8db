//! The program itself, stopped as a service manager stops it, and started again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Server(Child);

impl Server {
    /// Starts the program, and returns it with the address on which it listens.
    fn start(counts: &Path) -> (Self, String) {
        let mut program = Command::new(env!("CARGO_BIN_EXE_api"));
        let mut child = program
            .env("PORT", "0")
            .env("COUNTS", counts)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let address = line
            .strip_prefix("listening on http://")
            .and_then(|rest| rest.split(';').next());
        (Self(child), address.expect("an address").to_owned())
    }

    fn terminate(mut self) {
        let sent = Command::new("kill")
            .arg(self.0.id().to_string())
            .status()
            .expect("kill runs");
        assert!(sent.success() && self.0.wait().expect("it ends").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The status of a login with a wrong password.
fn guess(address: &str) -> String {
    let body = r#"{"user":"ada","password":"a guess"}"#;
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = "POST /login HTTP/1.1\r\nhost: api\r\ncontent-type: \
        application/json\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response.split(' ').nth(1).expect("a status").to_owned()
}

#[test]
fn a_restart_loses_no_wrong_password() {
    let counts = std::env::temp_dir().join(format!("api-counts-{}", std::process::id()));
    let mut statuses = Vec::new();
    for guesses in [3, 3] {
        let (server, address) = Server::start(&counts);
        statuses.extend((0..guesses).map(|_| guess(&address)));
        server.terminate();
    }
    std::fs::remove_file(counts).expect("the program has saved its counts");
    assert_eq!(statuses, ["401", "401", "401", "401", "401", "429"]);
}

#[test]
fn counts_that_do_not_fit_are_replaced() {
    let counts = std::env::temp_dir().join(format!("api-unfit-counts-{}", std::process::id()));
    for unfit in [&b""[..], b"throttle memory 9\n\0\0", &[0; 200]] {
        std::fs::write(&counts, unfit).expect("a temporary file");
        let (server, address) = Server::start(&counts);
        assert_eq!(guess(&address), "401");
        server.terminate();
        let saved = std::fs::read(&counts).expect("the program has saved its counts");
        assert!(saved.starts_with(b"throttle memory 1\n"));
    }
    std::fs::remove_file(counts).expect("it is there");
}
