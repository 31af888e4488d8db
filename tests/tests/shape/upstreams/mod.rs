//! Fourteen upstreams as their documentation describes them, and three clients of each: a loop that
//! retries each call by itself, a pace with that loop, and a pace that obeys.

#![allow(clippy::float_arithmetic, reason = "of simulated upstreams")]

mod client;
mod server;
mod table;

use std::time::Duration;

use self::client::{Client, Outcome, run};
use self::server::{Limit, Server, Tells};

/// One upstream, and the calls that are made to it.
struct Case {
    name: &'static str,
    server: fn(f64) -> Server,
    /// Calls a second, so many together, and for how many seconds.
    wanted: (f64, usize, f64),
    /// How long a call may wait here, and how long it is repeated, in seconds.
    bound: u64,
    patience: u64,
}

const fn case(
    name: &'static str,
    server: fn(f64) -> Server,
    wanted: (f64, usize, f64),
    bound: u64,
    patience: u64,
) -> Case {
    Case {
        name,
        server,
        wanted,
        bound,
        patience,
    }
}

#[rustfmt::skip]
const CASES: [Case; 14] = [
    case("GitHub without a token, 60 an hour", |trip| Server::new(Limit::window(60, 3_600.0, 0.0), Tells::Quota, 403, trip).bans(10, 120.0),
        (0.1, 1, 1_000.0), 10, 30),
    case("GitHub, 5,000 an hour", |trip| Server::new(Limit::window(5_000, 3_600.0, 0.0), Tells::Quota, 403, trip).bans(10, 120.0),
        (10.0, 1, 100.0), 10, 30),
    case("GitHub, 80 writes in a minute", |trip| Server::new(Limit::sliding(80, 60.0), Tells::Wait(60), 403, trip).bans(10, 120.0),
        (2.0, 1, 180.0), 30, 120),
    case("a refilling bucket, empty", |trip| Server::new(Limit::bucket(1_000.0 / 3_600.0, 1_000.0, 0.0), Tells::Full, 429, trip),
        (0.25, 1, 1_800.0), 30, 60),
    case("Binance, 1,200 a minute", |trip| Server::new(Limit::window(1_200, 60.0, 20.0), Tells::NextWindow, 429, trip).bans(3, 120.0),
        (30.0, 1, 240.0), 30, 60),
    case("Discord, 5 in 5 s", |trip| Server::new(Limit::window(5, 5.0, 0.0), Tells::Quota, 429, trip).bans(50, 120.0),
        (0.9, 9, 120.0), 30, 60),
    case("Notion, 180 a minute", |trip| Server::new(Limit::window(180, 60.0, 0.0), Tells::NextWindow, 429, trip).bans(50, 120.0),
        (4.0, 1, 180.0), 30, 90),
    case("Stripe, 25 a second", |trip| Server::new(Limit::bucket(25.0, 25.0, 25.0), Tells::Nothing, 429, trip),
        (40.0, 1, 10.0), 30, 60),
    case("a quota gone for two hours", |trip| Server::new(Limit::Gone, Tells::Wait(7_200), 429, trip),
        (1.0, 1, 300.0), 10, 10),
    case("AWS, 20 a second, status 400", |trip| Server::new(Limit::bucket(20.0, 100.0, 100.0), Tells::ErrorType, 400, trip),
        (30.0, 1, 30.0), 30, 60),
    case("Azure DevOps, late above 200", |trip| Server::new(Limit::sliding(400, 300.0), Tells::Late, 429, trip),
        (3.0, 1, 180.0), 30, 60),
    case("100 a minute, another clock", |trip| Server::new(Limit::window(100, 60.0, 0.0), Tells::Quota, 429, trip).bans(50, 120.0),
        (2.0, 1, 180.0), 30, 60),
    case("20 in 10 s, status 403", |trip| Server::new(Limit::sliding(20, 10.0), Tells::Wait(2), 403, trip).bans(10, 120.0),
        (4.0, 1, 60.0), 30, 60),
    case("Azure Resource Manager, 202", |trip| Server::new(Limit::Endless, Tells::LookAgain, 200, trip),
        (5.0, 1, 60.0), 10, 10),
];

impl Case {
    /// When the calls are made.
    fn times(&self) -> Vec<Duration> {
        let (rate, together, seconds) = self.wanted;
        let group = |call: usize| call / together * together;
        (0..(rate * seconds).round() as usize)
            .map(|call| Duration::from_secs_f64(group(call) as f64 / rate))
            .collect()
    }

    fn outcome(&self, client: Client, trip: f64) -> Outcome {
        run(self, client, trip)
    }
}

/// What has to hold of each upstream at this round trip, whatever the pace.
fn check(trip: f64) {
    let mut wrong = Vec::new();
    for (number, case) in (1..).zip(&CASES) {
        let looped = case.outcome(Client::Loop, trip);
        for pace in [5, 50, 200]
            .into_iter()
            .filter(|pace| *pace as f64 >= case.wanted.0)
        {
            let plain = case.outcome(Client::Plain { pace }, trip);
            let obeying = case.outcome(Client::Obeying { pace, slows: false }, trip);
            let mut must = |holds: bool, what: &str| {
                if !holds {
                    wrong.push(format!(
                        "{number} {}, {pace} a second: {what}\n  {looped:?}\n  {plain:?}\n  {obeying:?}",
                        case.name
                    ));
                }
            };
            must(obeying.wrong == 0, "refused here what would be answered");
            must(
                obeying.answered >= looped.answered,
                "answered fewer than the loop",
            );
            must(
                obeying.answered >= plain.answered,
                "answered fewer than the plain pace",
            );
            must(
                obeying.refused_there <= looped.refused_there,
                "refused there more than the loop",
            );
            must(obeying.inside_wait == 0, "called inside a stated wait");
            must(obeying.bans == 0, "banned");
            must(obeying.late_errors.is_empty(), "an error after the bound");
            must(obeying.without_cause == 0, "an error without its pause");
            must(
                obeying.probes.is_empty(),
                "more refusals after a pause than answers and one",
            );
            must(obeying.early == 0, "left before the end of its pause");
            must(obeying.idle == 0, "left later than the end of the pause");
            if number == 9 {
                must(obeying.sent == 1, "more than one call sent");
            }
            if number == 14 {
                must(obeying.pauses == 0, "paused");
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "at a round trip of {trip} s:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn law_16_shape_obeying_is_no_worse_than_asking_at_a_round_trip_of_20_ms() {
    check(0.02);
}

#[test]
fn law_16_shape_obeying_is_no_worse_than_asking_at_a_round_trip_of_120_ms() {
    check(0.12);
}

#[test]
fn law_16_shape_obeying_is_no_worse_than_asking_at_a_round_trip_of_1_s() {
    check(1.0);
}

/// Where the pace is far above the limit.
#[test]
fn shape_pace_that_slows_down_is_refused_less_by_the_upstream() {
    for number in [3, 8, 10, 13] {
        let [full, slow] = [false, true]
            .map(|slows| CASES[number - 1].outcome(Client::Obeying { pace: 50, slows }, 0.12));
        assert!(
            2 * slow.refused_there <= full.refused_there,
            "{number}: {slow:?} {full:?}"
        );
        assert!(
            slow.answered * 10 >= full.answered * 9,
            "{number}: {slow:?} {full:?}"
        );
    }
}
