//! A fleet of processes that share the servers of a cluster, simulated: what happens to decisions
//! when servers are slow, are lost and return, and how far limits are exceeded then.
//!
//! ```text
//! cargo test -p tower-throttle-redis --all-features --release --lib fleet -- --nocapture
//! ```
//!
//! prints the table of `SIZING.md`: 1,000 processes, a million requests a second, 64 servers, of
//! which four are simulated with their part of the load. Without `--release` a quarter of the
//! processes runs for half of the time.
//!
//! There is no network, no clock and no thread: events happen in the order of their times, and a
//! seed determines all of them. Decisions, shares, breakers, names, slots and pauses are those of
//! the library. The rules by which a link waits, sends and reconnects are written again here, after
//! those of `link` and `links`. Each decision is a call of its own: at the rates of such a fleet
//! (`SIZING.md`, "Batches") a call carries one.

#![allow(
    clippy::float_arithmetic,
    clippy::print_stdout,
    reason = "it prints figures"
)]

mod cases;
mod links;
mod outcome;
mod random;
mod servers;
mod settings;
mod simulation;

use cases::{CASES, Case};
use outcome::{By, HEAD};
use settings::{DEADLINE, DECISION, MILLI, OnError, SECOND, SLOTS_ANSWER, Settings};
use simulation::simulate;

/// Prints the table, row by row.
#[test]
fn fleet_table_is_printed() {
    // Two processors work on it.
    let simulate_all = |cases: &mut dyn Iterator<Item = Case>| {
        for case in cases {
            case.outcome();
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(|| simulate_all(&mut CASES.into_iter().rev()));
        simulate_all(&mut CASES.into_iter());
    });
    println!("{HEAD}");
    for case in CASES {
        println!("{}", case.outcome().row(case.name()));
    }
}

#[test]
fn same_seed_gives_the_same_bytes() {
    let settings = Settings {
        length: 3 * SECOND,
        ..Case::Hung.settings()
    };
    let row = |seed| {
        simulate(&Settings {
            seed,
            ..settings.clone()
        })
    };
    let (first, again, other) = (row(7), row(7), row(8));
    assert_eq!(first.row(""), again.row(""));
    assert!(first.latencies == again.latencies && first.admitted == again.admitted);
    assert_ne!(first.latencies, other.latencies);
}

#[test]
fn every_decision_is_counted_once() {
    for case in CASES {
        let outcome = case.outcome();
        let decided: u64 = outcome.by.iter().sum();
        assert_eq!(outcome.asked, decided, "{case:?}");
        assert_eq!(outcome.asked, outcome.latencies.len() as u64, "{case:?}");
        let expected = outcome.settings.rate * outcome.settings.length as f64 / SECOND as f64;
        let ratio = outcome.asked as f64 / expected;
        assert!((0.98..1.02).contains(&ratio), "{case:?}: {ratio}");
    }
}

#[test]
fn law_12_no_decision_is_later_than_its_deadline() {
    for case in CASES {
        let latest = case.outcome().latencies.last().copied();
        assert!(
            latest <= Some(DEADLINE + 5 * MILLI),
            "{case:?}: {latest:?} ns"
        );
    }
}

#[test]
fn law_13_without_failures_the_store_decides_and_limits_hold() {
    for case in Case::healthy() {
        let outcome = case.outcome();
        assert_eq!(outcome.by(By::Store), outcome.asked, "{case:?}");
        assert_eq!(outcome.openings, 0, "{case:?}");
        assert_eq!(outcome.over().sum::<u64>(), 0, "{case:?}");
    }
    let outcome = Case::Healthy.outcome();
    let allowed = outcome.settings.allowed(outcome.end);
    let worst = outcome.worst();
    assert!(
        allowed - worst <= 1,
        "the limit is reached: {worst} of {allowed}"
    );
}

#[test]
fn law_13_a_lost_server_takes_no_key_of_the_others_with_it() {
    for case in Case::of_a_loss() {
        let outcome = case.outcome();
        assert_eq!(outcome.others_lost, 0, "{case:?}");
        let (all, without) = outcome.during;
        let share = without as f64 / all as f64;
        assert!((0.2..0.27).contains(&share), "{case:?}: {share}");
    }
}

/// A process asks at its first failure, and then at pauses that grow to a second.
#[test]
fn slot_questions_of_a_process_are_bounded() {
    for case in Case::of_a_loss() {
        let outcome = case.outcome();
        let from = outcome.settings.loss.expect("a loss").from;
        let away = outcome.last_failure - from;
        let most = outcome.slot_questions.iter().copied().max();
        let bound = 4 + away / (SECOND / 2);
        assert!(
            most > Some(0) && most <= Some(bound),
            "{case:?}: {most:?} of {bound}"
        );
    }
}

#[test]
fn healthy_servers_hardly_become_busier_while_one_is_away() {
    for case in Case::of_a_loss() {
        let outcome = case.outcome();
        for server in &outcome.servers[1..] {
            let questions = (server.slot_questions * SLOTS_ANSWER) as f64;
            let share = questions / server.work.iter().sum::<u64>() as f64;
            assert!(share < 0.05, "{case:?}: {share} of its work");
        }
    }
}

#[test]
fn after_a_return_the_store_decides_again_and_no_server_is_overrun() {
    for case in Case::of_a_loss() {
        let outcome = case.outcome();
        let until = outcome.settings.loss.expect("a loss").until;
        // An attempt that hangs takes a second; the pause after it, and the next question for the
        // slots, take up to another one.
        let latest = until + 2 * SECOND;
        assert!(
            outcome.last_failure < latest,
            "{case:?}: {} ns",
            outcome.last_failure
        );
        assert_eq!(outcome.open_breakers, 0, "{case:?}");
        for server in outcome.servers.iter().chain([&outcome.replica]) {
            let is_full = |work: &&[u64]| work.iter().all(|work| *work >= servers::BUCKET);
            let second = (SECOND / servers::BUCKET) as usize;
            assert_eq!(server.work.windows(second).find(is_full), None, "{case:?}");
        }
    }
}

/// What the limit allows, and what the processes may add by their shares: each its capacity, and
/// its part of the rate for as long as the store does not decide.
#[test]
fn overshoot_of_each_key_is_bounded() {
    for case in Case::of_a_loss() {
        let outcome = case.outcome();
        let settings = &outcome.settings;
        let loss = settings.loss.expect("a loss");
        let away = outcome.last_failure - loss.from;
        let (rate, burst) = settings.limit;
        let of_store = match loss.then {
            settings::Return::Replica => settings.allowed(outcome.end),
            // A store that has forgotten its keys admits a burst more.
            settings::Return::Empty => settings.allowed(outcome.end) + burst,
        };
        let outside = match settings.on_error {
            OnError::Closed => 0,
            OnError::Open => u64::MAX,
            OnError::Local(n) => {
                let n = u64::from(n.get());
                let reach = settings.reach as u64;
                let capacity = (burst / n).max(1);
                reach * capacity + reach * rate * away / n / SECOND + 1
            }
        };
        for (admitted, by_no_store) in outcome.admitted.iter().zip(&outcome.admitted_outside) {
            assert!(admitted - by_no_store <= of_store, "{case:?}: by the store");
            assert!(*by_no_store <= outside, "{case:?}: {by_no_store}");
        }
    }
    let over = |case: Case| case.outcome().over().sum::<u64>();
    assert_eq!(over(Case::Closed), 0, "503 admits nothing");
    assert!(over(Case::Open) > 0 && over(Case::Killed) > 0, "it is seen");
}

/// Little's law: the requests under way are the rate times the latency.
#[test]
fn mean_number_under_way_is_the_rate_times_the_mean_latency() {
    for case in CASES {
        let outcome = case.outcome();
        let time = outcome.end as f64;
        let mean = outcome.under_way as f64 / time;
        let expected = outcome.asked as f64 / time * outcome.mean_latency();
        let ratio = mean / expected;
        assert!((0.98..1.02).contains(&ratio), "{case:?}: {ratio}");
    }
}

/// A queue of one server with random arrivals and equal work: M/D/1.
#[test]
fn mean_wait_is_that_of_the_theory() {
    for load in [0.3, 0.5, 0.8] {
        let outcome = simulate(&Settings {
            servers: 1,
            rate: load / DECISION as f64 * SECOND as f64,
            ..Settings::new()
        });
        let server = &outcome.servers[0];
        let mean = server.waited as f64 / server.served as f64;
        let expected = load * DECISION as f64 / (2.0 * (1.0 - load));
        let ratio = mean / expected;
        assert!((0.95..1.05).contains(&ratio), "at {load}: {ratio}");
    }
}
