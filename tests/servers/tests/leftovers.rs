//! Whatever way a test process ends, nothing it started stays: it runs itself as another process to see that.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use throttle_test_servers::{Server, Shared};

const ROLE: &str = "THROTTLE_LEFTOVERS_ROLE";

/// What the other process does; nothing when it is run as a test among others.
#[test]
fn role() {
    let Ok(role) = env::var(ROLE) else { return };
    let tell = |server: &Server| {
        let folder: Vec<String> = server.query(&["CONFIG", "GET", "dir"]);
        let line = format!("server {} {}\n", server.process_id().unwrap(), folder[1]);
        // Around the harness, which keeps back what a test prints.
        std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
    };
    match role.as_str() {
        "shared" => tell(&Shared::new()),
        "panic" => {
            let server = Server::start();
            tell(&server);
            panic!("as planned");
        }
        _ => {
            let (running, stopped) = (Server::start(), Server::start());
            stopped.restart();
            tell(&running);
            tell(&stopped);
            stopped.stop();
            std::io::Write::write_all(&mut std::io::stderr(), b"ready\n").unwrap();
            thread::sleep(Duration::from_secs(60));
        }
    }
}

fn run(role: &str) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    (child, lines)
}

/// A server's process and folder, as told.
fn server(line: &str) -> Option<(u32, PathBuf)> {
    let (pid, folder) = line.strip_prefix("server ")?.split_once(' ')?;
    Some((pid.parse().unwrap(), folder.into()))
}

fn assert_gone(servers: &[(u32, PathBuf)]) {
    let start = Instant::now();
    for (pid, folder) in servers {
        while runs(*pid) || Path::exists(folder) {
            assert!(start.elapsed() < Duration::from_secs(5), "process {pid} or {} is left", folder.display());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process that has ended and is not yet fetched by its parent does not count.
fn runs(pid: u32) -> bool {
    let state = if Path::new("/proc/self/stat").exists() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').map(|(_, rest)| rest.to_owned())
    } else {
        let ps = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
        Some(String::from_utf8_lossy(&ps.stdout).into_owned())
    };
    state.and_then(|state| state.trim().chars().next()).is_some_and(|letter| letter != 'Z')
}

#[test]
fn after_kill_9_nothing_is_left() {
    let (mut child, lines) = run("wait");
    let servers: Vec<_> = lines.take_while(|line| line != "ready").filter_map(|line| server(&line)).collect();
    assert_eq!(servers.len(), 2);
    assert!(servers.iter().all(|(pid, folder)| runs(*pid) && folder.exists()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_gone(&servers);
}

#[test]
fn after_a_panic_nothing_is_left() {
    let (mut child, lines) = run("panic");
    let servers: Vec<_> = lines.filter_map(|line| server(&line)).collect();
    assert!(!child.wait().unwrap().success());
    assert_eq!(servers.len(), 1);
    assert_gone(&servers);
}

#[test]
fn after_a_good_end_the_shared_server_is_gone() {
    let (mut child, lines) = run("shared");
    let servers: Vec<_> = lines.filter_map(|line| server(&line)).collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(servers.len(), 1);
    assert_gone(&servers);
}

#[test]
fn a_dropped_server_is_gone_at_once() {
    let server = Server::start();
    let (pid, folder): (_, Vec<String>) = (server.process_id().unwrap(), server.query(&["CONFIG", "GET", "dir"]));
    assert!(runs(pid) && Path::new(&folder[1]).exists());
    server.stop();
    drop(server);
    assert!(!runs(pid) && !Path::new(&folder[1]).exists());
}
