//! Processes that race for the last units of many keys admit exactly as many requests as there are
//! units: on one server, and on a cluster.
//!
//! This program starts itself again as the racing processes, so it has a `main` of its own.

#![allow(clippy::print_stdout, reason = "it is its own test runner")]

use std::env;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Backend, FixedWindow, Gcra, Key, Policy, PolicySet, PolicyTree, Rate};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder, Single};
use throttle_test_servers::{Cluster as Servers, Server};

const PROCESSES: usize = 8;
const KEYS: u64 = 20;
const K: u64 = 37;
/// What a lower class leaves free.
const RESERVE: u64 = 9;
/// A budget beside the one of K units that is never used up: it exceeds what is admitted plus what
/// all tasks can have reserved at once.
const ROOMY: u64 = K + 2 * (PROCESSES * TASKS) as u64;
/// Tasks of a process, each of which tries every key.
const TASKS: usize = 4;

/// The sets that each key is tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    One,
    /// Two limits of K units.
    Two,
    /// Two limits, of which only the second, with K units, ever refuses.
    Lopsided,
    /// By a lower class only.
    Lower,
    /// By a lower class and one without a reserve.
    Classes,
}

impl Asked {
    const ALL: [Self; 5] = [
        Self::One,
        Self::Two,
        Self::Lopsided,
        Self::Lower,
        Self::Classes,
    ];

    /// The units of each policy.
    const fn budgets(self) -> &'static [u64] {
        match self {
            Self::One | Self::Lower | Self::Classes => &[K],
            Self::Two => &[K, K],
            Self::Lopsided => &[ROOMY, K],
        }
    }

    fn rule(self) -> PolicyTree {
        // A window that does not end during a test.
        let window = |units| FixedWindow::new(Rate::new(units, Duration::from_secs(3650 * 86_400)));
        let policy = |name: String, units| Policy::new(&name, window(units)).expect("a policy");
        match self {
            Self::One => Policy::new("slow", Gcra::new(Rate::per_day(1)).burst(K))
                .expect("a policy")
                .into(),
            _ => {
                let name = format!("{self:?}").to_lowercase();
                let members = self.budgets().iter().enumerate();
                PolicyTree::All(
                    members
                        .map(|(place, units)| policy(format!("{name}-{place}"), *units).into())
                        .collect(),
                )
            }
        }
    }

    /// What the requests of a task leave free.
    fn reserve(self, task: usize) -> u64 {
        if self == Self::Lower || (self == Self::Classes && task.is_multiple_of(2)) {
            RESERVE
        } else {
            0
        }
    }

    /// One unit of each policy, or a peek. Policies of one set have keys of their own.
    fn calls(self, key: u64, cost: u64) -> Vec<Call> {
        let keys = [key, 1_000 + key].into_iter().take(self.budgets().len());
        keys.map(|key| Call::from(Key::from(key)).costing(cost))
            .collect()
    }
}

const TESTS: [&str; 4] = [
    "single",
    "single_unbatched",
    "cluster_together",
    "cluster_spread",
];

fn main() -> ExitCode {
    if let Ok(way) = env::var("EXACTLY_K_WAY") {
        race(&way, &env::var("EXACTLY_K_URLS").expect("URLs"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let name = |way: &str| format!("law_06_exactly_k_of_{PROCESSES}_processes::{way}");
    let chosen = TESTS.iter().filter(|way| {
        wanted.is_empty() || wanted.iter().any(|word| name(way).contains(word.as_str()))
    });
    if env::args().any(|word| word == "--list") {
        chosen.for_each(|way| println!("{}: test", name(way)));
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for way in chosen {
        let wrong = check(way);
        println!(
            "test {} ... {}",
            name(way),
            if wrong.is_empty() { "ok" } else { "FAILED" }
        );
        wrong.iter().for_each(|wrong| println!("    {wrong}"));
        if wrong.is_empty() {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    let left_out = TESTS.len() - passed - failed;
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; \
            {left_out} filtered out\n"
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs the race, and returns what is wrong with the admissions.
fn check(way: &str) -> Vec<String> {
    let (server, cluster);
    let urls = if way.starts_with("single") {
        server = Server::start();
        vec![server.url()]
    } else {
        cluster = Servers::shared();
        cluster.urls()
    };
    let racing: Vec<Child> = (0..PROCESSES)
        .map(|_| start(way, &urls.join(" ")))
        .collect();
    let mut admitted = vec![0; Asked::ALL.len() * KEYS as usize];
    for process in racing {
        let output = process.wait_with_output().expect("a process that races");
        if !output.status.success() {
            return vec!["a process that races failed".to_owned()];
        }
        let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
        for (sum, count) in admitted.iter_mut().zip(output_text.split_whitespace()) {
            *sum += count.parse::<u64>().expect("a count");
        }
    }
    afterwards(way, &urls.join(" "), &admitted)
}

/// After the race, a single client finds each unit that was not admitted, and no more.
#[tokio::main(flavor = "current_thread")]
async fn afterwards(way: &str, urls: &str, admitted: &[u64]) -> Vec<String> {
    let backend = builder(way, urls)
        .deadline(Duration::from_secs(10))
        .build()
        .expect("valid options");
    let mut wrong = Vec::new();
    for (asked, admitted) in Asked::ALL.into_iter().zip(admitted.chunks(KEYS as usize)) {
        let set = Arc::new(
            backend
                .prepare(PolicySet::new(asked.rule()).expect("a set"))
                .expect("a set"),
        );
        // With separate reservations, two members that both refuse may refuse early in a race, but
        // never admit too much. Most units are admitted in the race all the same: there are many
        // more tries than units.
        let early = way == "cluster_spread" && asked == Asked::Two;
        let most = if asked == Asked::Lower {
            K - RESERVE
        } else {
            K
        };
        let least = if early { K / 2 } else { most };
        for (key, raced) in (0..KEYS).zip(admitted) {
            let mut later = 0;
            while backend
                .decide(&set, &asked.calls(key, 1))
                .await
                .expect("a decision")
                .is_admitted()
            {
                later += 1;
            }
            let look = backend
                .decide(&set, &asked.calls(key, 0))
                .await
                .expect("a look");
            let left: Vec<u64> = look
                .statuses()
                .iter()
                .map(|status| status.remaining())
                .collect();
            let due: Vec<u64> = asked.budgets().iter().map(|units| units - K).collect();
            if *raced < least || *raced > most || raced + later != K || left != due {
                wrong.push(format!(
                    "key {key} of {asked:?}: {raced} admitted of {most}, {later} later; {left:?} left of {due:?}"
                ));
            }
        }
    }
    wrong
}

fn start(way: &str, urls: &str) -> Child {
    let mut again = Command::new(env::current_exe().expect("this program"));
    again
        .env("EXACTLY_K_WAY", way)
        .env("EXACTLY_K_URLS", urls)
        .stdout(Stdio::piped());
    again.spawn().expect("this program, again")
}

fn builder(way: &str, urls: &str) -> RedisBuilder {
    let cluster = || RedisBackend::builder(Cluster::new(urls.split(' ')).expect("URLs"));
    let single = || RedisBackend::builder(Single::new(urls).expect("a URL"));
    match way {
        "single" => single(),
        "single_unbatched" => single().max_batch(1),
        "cluster_together" => cluster().single_slot("k").prefix("together"),
        _ => cluster().per_key_slot().prefix("spread"),
    }
}

/// One process of the race: takes as many units as it can, and prints how many it took of each key.
#[tokio::main(worker_threads = 2)]
async fn race(way: &str, urls: &str) {
    let backend = builder(way, urls)
        .deadline(Duration::from_secs(10))
        .build()
        .expect("valid options");
    let sets = Asked::ALL.map(|asked| {
        let set = PolicySet::new(asked.rule()).expect("a set");
        (asked, Arc::new(backend.prepare(set).expect("a set")))
    });
    let mut racing = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (backend, sets) = (backend.clone(), sets.clone());
        racing.spawn(async move {
            let mut admitted = vec![0; Asked::ALL.len() * KEYS as usize];
            for _ in 0..K / 2 {
                for key in 0..KEYS {
                    for (place, (asked, set)) in sets.iter().enumerate() {
                        let of_class = |call: Call| call.reserving(asked.reserve(task));
                        let calls: Vec<Call> =
                            asked.calls(key, 1).into_iter().map(of_class).collect();
                        let decision = backend.decide(set, &calls).await.expect("a decision");
                        admitted[place * KEYS as usize + key as usize] +=
                            u64::from(decision.is_admitted());
                    }
                }
            }
            admitted
        });
    }
    let mut sums = vec![0; Asked::ALL.len() * KEYS as usize];
    for admitted in racing.join_all().await {
        sums.iter_mut()
            .zip(admitted)
            .for_each(|(sum, count)| *sum += count);
    }
    println!(
        "{}",
        sums.iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    );
}
