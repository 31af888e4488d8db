//! Row 2: the clock of the machine is set.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use throttle_core::backend::Call;
use throttle_core::{Gcra, Key, Limiter, Policy, PolicySet, Rate};
use throttle_redis::{RedisBackend, Single};

use super::ideal::Quota;
use super::libraries::{Admit, LIBRARIES};
use super::page::{Row, Table};
use super::servers::{PRELOAD, Server, haproxy, nginx};

pub const ROW: Row = Row {
    word: "clock",
    title: "The machine's clock is set an hour forth and back",
    about: "A client that sends 20 requests at each step has 10 in 5 s. libfaketime changes the \
        wall clock of the
limiter's process and leaves its monotonic clock alone, as setting a machine's clock does. Exact \
is 10 at first, 0
after each change of the clock, and 10 after each rest of 11 s. More after a change is a limit \
exceeded. Less after
a rest is a client locked out. Limiters that stay exact read the monotonic clock. With Redis, the \
server's clock is
changed. nginx: `rate=2r/s`, `burst=9 nodelay`; HAProxy: `http_req_rate(5s)`; limitador: 10 in 5 \
s.",
    run,
};

/// The argument that makes this program be one limiter under a clock that is set.
pub const CHILD: &str = "--clock";

const QUOTA: Quota = Quota {
    count: 10,
    period: Duration::from_secs(5),
};
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
const FILE: &str = "FAKETIME_TIMESTAMP_FILE";
const REST: Duration = Duration::from_secs(11);

fn run() -> String {
    if !Path::new(LIBRARY).exists() {
        return format!(
            "Not measured: {LIBRARY} is not installed (apt-get install libfaketime).\n"
        );
    }
    let mut table = Table::new(&[
        "limiter",
        "at first: 10",
        "an hour forth: 0",
        "back again: 0",
        "after a rest: 10",
        "an hour back: 0",
        "after a rest: 10",
    ]);
    let names: Vec<&str> = LIBRARIES
        .iter()
        .map(|library| library.name)
        .chain(SERVERS)
        .collect();
    // All of them at once: they sleep nearly all the time.
    let running: Vec<_> = (0..names.len()).map(start).collect();
    for (name, running) in names.iter().zip(running) {
        let output = running.wait_with_output().expect("this program runs");
        let numbers = String::from_utf8_lossy(&output.stdout)
            .trim()
            .replace('\n', " ");
        table.row(
            &[*name]
                .into_iter()
                .chain(numbers.split(' '))
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        );
    }
    table.text()
}

const SERVERS: [&str; 3] = ["throttle, `Gcra` on Redis", "nginx", "HAProxy"];

fn start(place: usize) -> std::process::Child {
    let file = env::temp_dir().join(format!(
        "throttle-peers-clock-{}-{place}",
        std::process::id()
    ));
    fs::write(&file, "+0").expect("a temporary file");
    Command::new(env::current_exe().expect("a running program has a path"))
        .args([CHILD, &place.to_string()])
        // A server under such a clock is a process of its own, and its client keeps the time.
        .env(
            if place < LIBRARIES.len() {
                "LD_PRELOAD"
            } else {
                PRELOAD
            },
            LIBRARY,
        )
        .env(FILE, file)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs")
}

/// Asks one limiter, and sets the clock of this process and of those that it has started.
pub fn child(args: &[String]) {
    let place: usize = args.first().and_then(|place| place.parse().ok()).expect(
        "a limiter's \
        number",
    );
    let mut admit = match place.checked_sub(LIBRARIES.len()) {
        None => (LIBRARIES[place].real)(QUOTA),
        Some(0) => throttle_on_redis(),
        Some(1) => nginx(QUOTA),
        Some(_) => haproxy(QUOTA),
    };
    let file = env::var(FILE).expect("the parent names the file");
    let mut admitted_at = |offset: &str| {
        fs::write(&file, offset).expect("the file can be written");
        let admitted = (0..20).filter(|_| admit()).count();
        println!("{admitted}");
    };
    admitted_at("+0");
    admitted_at("+3600");
    admitted_at("+0");
    thread::sleep(REST);
    admitted_at("+0");
    admitted_at("-3600");
    thread::sleep(REST);
    admitted_at("-3600");
    let _ = fs::remove_file(file);
}

fn throttle_on_redis() -> Admit {
    let server = Server::redis();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let connector = Single::new(&format!("redis://127.0.0.1:{}", server.port)).expect("a URL");
    let backend = RedisBackend::builder(connector)
        .deadline(Duration::from_secs(5))
        .build()
        .expect("a valid backend");
    let gcra = Gcra::new(Rate::new(QUOTA.count.into(), QUOTA.period));
    let set = PolicySet::new(Policy::new("compared", gcra).expect("a valid limit")).expect(
        "a \
        valid set",
    );
    let limiter = Limiter::new(backend, set).expect("the backend holds such a set");
    Box::new(move || {
        let _until_then = &server;
        let decision = runtime.block_on(limiter.decide(&[Call::from(Key::from("client"))]));
        decision.expect("Redis answers").is_admitted()
    })
}
