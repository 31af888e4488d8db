//! Child processes that end with the test, however it ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, mem, thread};

/// Starts the program, and kills it when the pipe to this shell is closed: by `drop`, or by the
/// system when the test's process has ended. Programs may name more processes to kill in files
/// `*.pid`.
const KEEPER: &str = r#"
trap '' HUP INT QUIT TERM
folder=$1
shift
"$@" </dev/null >"$folder/output" 2>&1 &
pid=$!
read -r _
kill -9 "$pid"
for file in "$folder"/*.pid; do [ ! -e "$file" ] || kill -9 "$(cat "$file")"; done
wait
rm -rf "$folder" || { sleep 1; rm -rf "$folder"; }
"#;

/// A process and a temporary folder, which is its working directory. Both end with this value.
pub struct Child {
    keeper: process::Child,
    folder: PathBuf,
}

/// A new temporary folder.
pub fn folder() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("throttle-extra-{}-{number}", process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a temporary folder");
    folder
}

impl Child {
    /// Starts a program in a folder of its own, which may already hold files for it.
    pub fn start(
        folder: PathBuf,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .args([folder.as_os_str(), program.as_os_str()])
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        Self { keeper, folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    /// Waits until it has printed the text, and returns all output.
    ///
    /// # Panics
    ///
    /// If it does not within 20 seconds.
    pub fn wait_for_output(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let output = self.output();
            if output.contains(text) {
                return output;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "no {text:?} in the \
                output:\n{output}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        mem::drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// The path of a program.
///
/// # Panics
///
/// If it is not installed: a test that needs it must not pass without it.
pub fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("these tests need {name}, which `sh tests/extra.sh` installs"))
}

/// Runs a program with a text as its input. Returns whether it succeeded, and what it printed.
pub fn run(name: &str, arguments: &[&str], input: &str) -> (bool, String) {
    let folder = folder();
    let file = folder.join("input");
    fs::write(&file, input).expect("a temporary folder");
    let done = Command::new(program(name))
        .args(arguments)
        .stdin(File::open(&file).expect("a file written above"))
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let _ = fs::remove_dir_all(folder);
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    (done.status.success(), text.into_owned())
}

/// A port that is free now. It is below those of outgoing connections, so that none of them takes
/// it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let start = u64::from(process::id()) * 13;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + u16::try_from((start + step) % 10_000).expect("a remainder by 10,000");
        match std::net::TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return port,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}"),
        }
    }
}
