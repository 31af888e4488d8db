//! Two processes follow one rule file that changes under load, and share one server. Both processes
//! together admit no more for a key than the larger version of the file allows.
//!
//! This program starts itself again as the two processes, so it has a `main` of its own.

#![allow(
    clippy::print_stdout,
    reason = "it is its own test runner, and the counts are part of the result"
)]

#[path = "support/alternating.rs"]
mod alternating;
#[path = "support/own_runner.rs"]
mod own_runner;

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use alternating::{CHANGES, Folder, MOST, Way, load};
use throttle_redis::{RedisBackend, Single};
use throttle_rules::{Registry, Rules};
use throttle_test_servers::Server;

const NAME: &str = "law_05_files_alternate_under_load_in_two_processes_on_redis";

#[tokio::main]
async fn main() -> ExitCode {
    if let Ok(folder) = env::var("RULES_FLEET_FOLDER") {
        follow(
            Path::new(&folder),
            &env::var("RULES_FLEET_REDIS").expect("the URL of a server"),
        )
        .await;
        return ExitCode::SUCCESS;
    }
    own_runner::run(NAME, async || Way::ALL.into_iter().try_for_each(alternate)).await
}

/// The file changes a thousand times. Each process reads it after each change, one a millisecond
/// later than the other, so that half of the time they have different versions of it.
fn alternate(way: Way) -> Result<(), String> {
    let (redis, folder) = (
        Server::start(),
        Folder::new(&format!("rules-fleet-{way:?}")),
    );
    way.put(&folder.0, 0);
    let mut fleet = [0, 1].map(|_| Process::start(&folder.0, &redis.url()));
    let mut refused = 0;
    for n in 1..=CHANGES {
        way.put(&folder.0, n);
        if read_file(&mut fleet) > 0 {
            return Err(format!("{way:?}: a process has refused file {n}"));
        }
        if way.cut_off(&folder.0, n) {
            refused += read_file(&mut fleet);
        }
    }
    let mut sums = [0; 5];
    for process in fleet {
        let counts = process.end()?;
        println!("    {way:?}, a process: {}", described(&counts));
        let [_, _, even, odd, revision] = counts;
        if even == 0 || odd == 0 || revision != CHANGES + 1 {
            return Err(format!(
                "{way:?}: a process did not follow the file: {counts:?}"
            ));
        }
        sums.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count);
    }
    println!(
        "    {way:?}, both: {}; {refused} files refused",
        described(&sums)
    );
    let [admitted, ..] = sums;
    if !(2_000..=MOST).contains(&admitted) {
        return Err(format!(
            "{way:?}: {admitted} requests were admitted, of 2000 to {MOST}"
        ));
    }
    if refused != 2 * way.cuts() {
        return Err(format!(
            "{way:?}: {refused} files were refused, of {} that were cut off",
            2 * way.cuts()
        ));
    }
    Ok(())
}

/// Lets each process read the file, one later than the other. Returns how many have refused it.
fn read_file(fleet: &mut [Process; 2]) -> u64 {
    fleet
        .iter_mut()
        .zip([0, 1])
        .for_each(|(process, millis)| process.order(millis));
    fleet
        .iter_mut()
        .map(|process| u64::from(process.answer() != IN_FORCE))
        .sum()
}

fn described([admitted, over, even, odd, _]: &[u64; 5]) -> String {
    format!("{admitted} admitted and {over} refused; {even} and {odd} by the two versions")
}

/// A process of the fleet, as the one that has started it sees it.
struct Process {
    child: Child,
    /// Each line makes it read the file after so many milliseconds. At the end of all lines it
    /// ends.
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Returns when the process answers requests.
    fn start(folder: &Path, redis: &str) -> Self {
        let mut child = Command::new(env::current_exe().expect("this program"))
            .env("RULES_FLEET_FOLDER", folder)
            .env("RULES_FLEET_REDIS", redis)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process of the fleet");
        let (orders, answers) = (
            child.stdin.take().expect("piped"),
            child.stdout.take().expect("piped"),
        );
        let mut process = Self {
            child,
            orders,
            answers: BufReader::new(answers),
        };
        assert_eq!(process.answer(), READY);
        process
    }

    fn order(&mut self, millis: u64) {
        writeln!(self.orders, "{millis}").expect("the process runs");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// What it has counted.
    fn end(mut self) -> Result<[u64; 5], String> {
        drop(self.orders);
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        let ended = self.child.wait().expect("it was started");
        let counts: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        let counts = counts
            .ok()
            .and_then(|counts| <[u64; 5]>::try_from(counts).ok());
        counts
            .filter(|_| ended.success())
            .ok_or_else(|| format!("a process of the fleet failed: {ended}"))
    }
}

const READY: &str = "ready";
const IN_FORCE: &str = "in force";

/// The work of each process: a request in each millisecond, and a look at the file when it is
/// ordered.
async fn follow(folder: &Path, redis: &str) {
    let connector = Single::new(redis).expect("a valid URL");
    // This test checks what is counted, not how soon a busy machine responds.
    let backend = RedisBackend::builder(connector)
        .deadline(Duration::from_secs(10))
        .build()
        .expect("valid options");
    let rules =
        Rules::from_path(folder.join("throttle.toml"), Registry::new()).expect("the first version");
    let (layer, handle) = rules.layer(backend).expect("limits");
    let is_over = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(load(layer, 1, Arc::clone(&is_over)));
    println!("{READY}");
    for order in std::io::stdin().lines() {
        let millis = order.expect("a line").parse().expect("milliseconds");
        std::thread::sleep(Duration::from_millis(millis));
        match handle.reload() {
            Ok(_) => println!("{IN_FORCE}"),
            Err(error) => println!("refused: {:?}", error.to_string()),
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let counts = load.await.expect("no request fails");
    let counts = [
        &counts.admitted,
        &counts.refused,
        &counts.by[0],
        &counts.by[1],
    ];
    let [admitted, refused, even, odd] = counts.map(|count| count.load(Ordering::Relaxed));
    println!(
        "{admitted} {refused} {even} {odd} {}",
        handle.status().revision
    );
}
