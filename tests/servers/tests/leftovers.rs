//! No server stays behind, however the process ends that started it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use throttle_test_servers::Server;

fn run(ending: &str) -> (Child, impl Iterator<Item = String>) {
    let leftover = env!("CARGO_BIN_EXE_leftover");
    let mut child = Command::new(leftover)
        .arg(ending)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    (child, lines)
}

/// A server's process and directory, as the program printed them.
fn server(line: &str) -> Option<(u32, PathBuf)> {
    let (pid, folder) = line.strip_prefix("server ")?.split_once(' ')?;
    Some((pid.parse().unwrap(), folder.into()))
}

fn assert_gone(servers: &[(u32, PathBuf)]) {
    let start = Instant::now();
    for (pid, folder) in servers {
        while runs(*pid) || Path::exists(folder) {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "process {pid} or {} is left",
                folder.display()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process that has ended but was not reaped by its parent does not count.
fn runs(pid: u32) -> bool {
    let state = if Path::new("/proc/self/stat").exists() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').map(|(_, rest)| rest.to_owned())
    } else {
        let ps = Command::new("ps")
            .args(["-o", "stat=", "-p", &pid.to_string()])
            .output()
            .unwrap();
        Some(String::from_utf8_lossy(&ps.stdout).into_owned())
    };
    state
        .and_then(|state| state.trim().chars().next())
        .is_some_and(|letter| letter != 'Z')
}

#[test]
fn after_kill_9_nothing_is_left() {
    let (mut child, lines) = run("wait");
    let servers: Vec<_> = lines
        .take_while(|line| line != "ready")
        .filter_map(|line| server(&line))
        .collect();
    assert_eq!(servers.len(), 2);
    assert!(
        servers
            .iter()
            .all(|(pid, folder)| runs(*pid) && folder.exists())
    );
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
fn after_a_normal_exit_the_shared_server_is_gone() {
    let (mut child, lines) = run("shared");
    let servers: Vec<_> = lines.filter_map(|line| server(&line)).collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(servers.len(), 1);
    assert_gone(&servers);
}

#[test]
fn a_dropped_server_is_gone_at_once() {
    let server = Server::start();
    let (pid, folder): (_, Vec<String>) = (
        server.process_id().unwrap(),
        server.query(&["CONFIG", "GET", "dir"]),
    );
    assert!(runs(pid) && Path::new(&folder[1]).exists());
    server.stop();
    drop(server);
    assert!(!runs(pid) && !Path::new(&folder[1]).exists());
}
