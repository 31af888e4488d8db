//! Instructions of one decision and of one request, counted by valgrind's callgrind.
//!
//! Times vary with the machine; instruction counts do not. Each row runs this program twice under callgrind, with few
//! steps and with many: the difference is the cost of the additional steps, without start-up and cache warming.

use std::env;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use axum::Router;
use throttle_core::backend::Call;
use throttle_core::{Gcra, Key, Policy, PolicyTree, Rate};

use crate::layer;
use crate::peers::{GovernorInformed, Limit, Peer, Throttle};
use crate::report;
use crate::rivals::{Pool, RateNet};
use crate::shape::cost;

pub const CHILD: &str = "--count";

const FEW: usize = 1_000;
const MANY: usize = 3_000;
const KEYS: u32 = 10_000;

/// Each row: its name, and the word that names its case beside the contender.
const DECISIONS: [(&str, &str); 3] =
    [("hot key, admitted", "admits"), ("hot key, refused", "refuses"), ("10 k keys, admitted", "10k")];

/// Sets of three limits in one `all`, on one key and on three, beside a set of one: each row's name and contender.
const SETS: [(&str, &str); 6] = [
    ("one limit, admitted", "set 1 1 admits"),
    ("three on one key, admitted", "set 3 1 admits"),
    ("three on three keys, admitted", "set 3 3 admits"),
    ("one limit, refused", "set 1 1 refuses"),
    ("three on one key, refused", "set 3 1 refuses"),
    ("three on three keys, refused", "set 3 3 refuses"),
];

pub fn run() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!(
            "instructions: valgrind is not installed; install it (apt-get install valgrind), then run this again"
        );
        std::process::exit(2);
    }
    report::title(
        "Instructions of one decision (callgrind; exact)",
        &["decision", "throttle", "governor with state", "rate-net", "quota", "governor ÷ throttle"],
    );
    for (name, does) in DECISIONS {
        let counts = ["throttle", "governor", "rate-net", "quota"].map(|peer| count(&format!("{peer} {does}")));
        let ratio = format!("**{:.2}**", counts[1] as f64 / counts[0] as f64);
        report::row(&[&[name.to_owned()][..], &counts.map(|count| count.to_string()), &[ratio]].concat());
    }
    let columns = ["limits in one `all`, hot", "instructions", "÷ one limit"];
    report::title("Instructions of one decision of a set (callgrind; exact)", &columns);
    let mut one = 0;
    for (name, contender) in SETS {
        let instructions = count(contender);
        one = if contender.starts_with("set 1") { instructions } else { one };
        let ratio = format!("**{:.2}**", instructions as f64 / one as f64);
        report::row(&[name.to_owned(), instructions.to_string(), ratio]);
    }
    report::title(
        "Instructions of one request through Router::oneshot (callgrind; exact)",
        &["layer", "instructions", "more than the identity layer"],
    );
    let identity = count("layer 0");
    for (place, (name, _)) in layer::counted().iter().enumerate() {
        let instructions = count(&format!("layer {place}"));
        let more = format!("{:+}", instructions as i64 - identity as i64);
        report::row(&[(*name).to_owned(), instructions.to_string(), more]);
    }
    report::title("Instructions of one call that need not wait (callgrind; exact)", &["shaper", "instructions"]);
    for (place, name) in cost::counted().into_iter().enumerate() {
        let turns = |turns| total(&format!("shaper {place}"), turns);
        let instructions = (turns(3) - turns(1)) / (2 * cost::STEPS) as u64;
        report::row(&[name.to_owned(), instructions.to_string()]);
    }
}

/// Instructions of one step.
fn count(contender: &str) -> u64 {
    (total(contender, MANY) - total(contender, FEW)) / (MANY - FEW) as u64
}

fn total(contender: &str, steps: usize) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_steps*"])
        .arg(env::current_exe().expect("a running program has a path"))
        .args([CHILD, contender, &steps.to_string()])
        .output()
        .expect("valgrind runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected :")).map(|(_, number)| number.trim());
    collected.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("callgrind counted nothing: {text}"))
}

/// One contender's steps, in a process of their own.
pub fn child(args: &[String]) {
    let [contender, steps] = args else { return };
    let steps: usize = steps.parse().expect("a number of steps");
    let addresses = |keys: u32| (0..steps).map(move |n| address(n as u32 % keys)).collect::<Vec<_>>();
    let decide = |peer: &dyn Peer, keys: u32| {
        // Every key exists before the first counted step, and is exhausted if the limit refuses.
        (0..keys).for_each(|n| _ = black_box(peer.decide(address(n))));
        let mut step = |address| _ = black_box(peer.decide(address));
        counted_steps(addresses(keys), &mut step);
    };
    match contender.as_str() {
        "throttle admits" => decide(&Throttle::new(Limit::NEVER_REFUSES, 1_000_000), 1),
        "governor admits" => decide(&GovernorInformed::new(Limit::NEVER_REFUSES), 1),
        "throttle refuses" => decide(&Throttle::new(Limit::REFUSES, 1_000_000), 1),
        "governor refuses" => decide(&GovernorInformed::new(Limit::REFUSES), 1),
        "throttle 10k" => decide(&Throttle::new(Limit::STAYS_LIVE, 1_000_000), KEYS),
        "governor 10k" => decide(&GovernorInformed::new(Limit::STAYS_LIVE), KEYS),
        "rate-net admits" => decide(&RateNet::new(Limit::NEVER_REFUSES), 1),
        "quota admits" => decide(&Pool::new(Limit::NEVER_REFUSES), 1),
        "rate-net refuses" => decide(&RateNet::new(Limit::REFUSES), 1),
        "quota refuses" => decide(&Pool::new(Limit::REFUSES), 1),
        "rate-net 10k" => decide(&RateNet::new(Limit::STAYS_LIVE), KEYS),
        "quota 10k" => decide(&Pool::new(Limit::STAYS_LIVE), KEYS),
        set if set.starts_with("set ") => decide_set(set, steps),
        shaper if shaper.starts_with("shaper ") => {
            let place = shaper.trim_start_matches("shaper ").parse().expect("a row's number");
            cost::turns(place, steps, |turns, turn| counted_steps(turns, turn));
        }
        other => {
            let place: usize = other.trim_start_matches("layer ").parse().expect("a row's number");
            let (_, app) = layer::counted().swap_remove(place);
            drop(layer::answer(app.clone(), layer::request()));
            // Clones and requests are made outside of the counted part.
            let requests: Vec<_> = (0..steps).map(|_| (app.clone(), layer::request())).collect();
            counted_steps(requests, &mut |(app, request): (Router, _)| drop(black_box(layer::answer(app, request))));
        }
    }
}

/// The steps of a set, named by its number of limits, its number of keys, and what it does.
fn decide_set(name: &str, steps: usize) {
    let [_, limits, keys, does] = name.split(' ').collect::<Vec<_>>()[..] else { panic!("four words: {name}") };
    let (limits, keys): (u32, u32) = (limits.parse().expect("a number"), keys.parse().expect("a number"));
    let limit = if does == "admits" { Limit::NEVER_REFUSES } else { Limit::REFUSES };
    let policy = |n| {
        let gcra = Gcra::new(Rate::new(1, limit.every)).burst(limit.burst.into());
        Policy::new(&format!("member {n}"), gcra).expect("the limit is valid").into()
    };
    let throttle = Throttle::with(PolicyTree::All((0..limits).map(policy).collect()), 1_000_000);
    let calls: Vec<_> = (0..limits).map(|n| Call::from(Key::from(address(n % keys)))).collect();
    throttle.ask(&calls);
    counted_steps(vec![&*calls; steps], &mut |calls: &[Call]| _ = black_box(throttle.ask(calls)));
}

/// The function that callgrind collects, by its name.
#[inline(never)]
fn counted_steps<T>(items: Vec<T>, step: &mut dyn FnMut(T)) {
    for item in items {
        step(item);
    }
}

fn address(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n))
}
