//! Instructions of one decision and of one request, counted by valgrind's callgrind.
//!
//! Times vary with the machine; instruction counts do not. Each row runs this program twice under
//! callgrind, with few steps and with many: the difference is the cost of the additional steps,
//! without start-up and cache warming.

use std::env;
use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use throttle_core::backend::Call;
use throttle_core::{AnyCharge, Gcra, Key, Policy, PolicyTree, Rate};

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
const DECISIONS: [(&str, &str); 3] = [
    ("hot key, admitted", "admits"),
    ("hot key, refused", "refuses"),
    ("10 k keys, admitted", "10k"),
];

/// Sets of limits, mostly on hot keys: how they are composed, how many, on how many keys, how many
/// do not apply, and whether they admit. Of some, one limit leaves units free for other classes.
const SETS: [&str; 22] = [
    "all 1 1 0 admits",
    "all 2 1 0 admits",
    "all 3 1 0 admits",
    "all 4 1 0 admits",
    "all 8 1 0 admits",
    "all 16 1 0 admits",
    "all 17 1 0 admits",
    "all 3 3 0 admits",
    "all 3 new 0 admits",
    "all 3 1 0 reserves",
    "all 2 1 1 admits",
    "all 3 1 1 admits",
    "all 8 1 1 admits",
    "all 8 1 7 admits",
    "all 17 1 1 admits",
    "any 2 1 0 admits",
    "any 3 1 0 admits",
    "nested 3 1 0 admits",
    "all 1 1 0 refuses",
    "all 3 1 0 refuses",
    "all 3 3 0 refuses",
    "any 3 1 0 refuses",
];

pub fn run() {
    needs_valgrind();
    report::title(
        "Instructions of one decision (callgrind; exact)",
        &[
            "decision",
            "throttle",
            "governor with state",
            "rate-net",
            "quota",
            "governor ÷ \
            throttle",
        ],
    );
    for (name, does) in DECISIONS {
        let counts = ["throttle", "governor", "rate-net", "quota"]
            .map(|peer| count(&format!("{peer} {does}")));
        let ratio = format!("**{:.2}**", counts[1] as f64 / counts[0] as f64);
        report::row(
            &[
                &[name.to_owned()][..],
                &counts.map(|count| count.to_string()),
                &[ratio],
            ]
            .concat(),
        );
    }
    let columns = ["limits, hot", "instructions", "÷ one limit"];
    report::title(
        "Instructions of one decision of a set (callgrind; exact)",
        &columns,
    );
    let mut one = 0;
    for set in SETS {
        let instructions = count(&format!("set {set}"));
        one = if set.starts_with("all 1 ") {
            instructions
        } else {
            one
        };
        let ratio = format!("**{:.2}**", instructions as f64 / one as f64);
        report::row(&[set_in_words(set), instructions.to_string(), ratio]);
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
    report::title(
        "Instructions of one call that need not wait (callgrind; exact)",
        &["shaper", "instructions"],
    );
    for (place, name) in cost::counted().into_iter().enumerate() {
        report::row(&[name.to_owned(), shaped(place).to_string()]);
    }
}

/// Compares throttle's own rows with the table in the repository. Ends the process with 1 if one
/// has risen by more than 5 %, and writes the table anew if [`UPDATE`] is set.
///
/// Another compiler, C library or processor (which the C library copies memory for) counts
/// otherwise. The rows of other crates show that, because nothing here changes them: if one differs
/// by more than 1 %, no row is judged.
pub fn check() {
    needs_valgrind();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");
    let table = fs::read_to_string(file).unwrap_or_default();
    let known = |row: &str| {
        table
            .lines()
            .find_map(|line| line.strip_prefix(row)?.trim().parse::<u64>().ok())
    };
    report::title(
        "Instructions beside the table (callgrind; exact)",
        &["row", "table", "now"],
    );
    let (mut text, mut risen, mut is_alike) = (String::new(), Vec::new(), true);
    for (row, instructions) in own_rows() {
        let before = known(&row);
        let shown = before.map_or_else(|| "–".to_owned(), |before| before.to_string());
        report::row(&[
            row.trim_end_matches(':').to_owned(),
            shown,
            instructions.to_string(),
        ]);
        text += &format!("{row} {instructions}\n");
        if row.starts_with(CONTROL) {
            is_alike &= before.is_some_and(|before| before.abs_diff(instructions) * 100 <= before);
        } else if before.is_none_or(|before| instructions * 100 > before * 105) {
            risen.push(row);
        }
    }
    if env::var_os(UPDATE).is_some() {
        fs::write(file, text).expect("the table can be written");
    } else if !is_alike {
        println!(
            "\nThis compiler, C library or processor counts other crates otherwise, so \
            nothing is judged here."
        );
    } else if !risen.is_empty() {
        eprintln!(
            "instructions: more than 5 % above tests/peers/instructions.txt, or not in it: {}\nIf that is worth it, \
             write the table anew with {UPDATE}=1, and say why in the commit",
            risen.join(" ")
        );
        std::process::exit(1);
    }
}

const UPDATE: &str = "UPDATE_INSTRUCTIONS";
const CONTROL: &str = "control, ";

/// What throttle takes, behind two rows of other crates: the name of each row with a colon, and the
/// instructions.
fn own_rows() -> impl Iterator<Item = (String, u64)> {
    let decisions = DECISIONS.map(|(name, does)| {
        (
            format!("decision, {name}:"),
            count(&format!("throttle {does}")),
        )
    });
    let sets = SETS.into_iter().map(|set| {
        (
            format!("{}:", set_in_words(set)),
            count(&format!(
                "set \
        {set}"
            )),
        )
    });
    let layers = layer::counted()
        .into_iter()
        .enumerate()
        .filter(|(_, (name, _))| name.starts_with("throttle"));
    let identity = count("layer 0");
    let theirs = "tower_governor, one policy, its headers";
    let place = layer::counted()
        .iter()
        .position(|(name, _)| *name == theirs)
        .expect(
            "a row of \
        that name",
        );
    let controls = [
        (
            format!("{CONTROL}governor with state, hot key, admitted:"),
            count("governor admits"),
        ),
        (
            format!("{CONTROL}{theirs}, over identity:"),
            count(&format!("layer {place}")) - identity,
        ),
    ];
    let layers = layers.map(move |(place, (name, _))| {
        (
            format!("layer over identity, {}:", &name[10..]),
            count(&format!("layer {place}")) - identity,
        )
    });
    let shapers = cost::counted()
        .into_iter()
        .enumerate()
        .filter(|(_, name)| name.starts_with("throttle"));
    let shapers = shapers.map(|(place, name)| (format!("shaper, {}:", &name[10..]), shaped(place)));
    controls
        .into_iter()
        .chain(decisions)
        .chain(sets)
        .chain(layers)
        .chain(shapers)
}

fn needs_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!(
            "instructions: valgrind is not installed; install it (apt-get install valgrind), then \
                run this again"
        );
        std::process::exit(2);
    }
}

fn set_in_words(set: &str) -> String {
    let [composed, limits, keys, skipped, does] = set.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("{set}")
    };
    let keys = match keys {
        "1" => "one key",
        "new" => "one new key",
        _ => "as many keys",
    };
    let skipped = if skipped == "0" {
        String::new()
    } else {
        format!(
            ", {skipped} of them do not \
        apply"
        )
    };
    let composed = if composed == "nested" {
        "all, of which two in an any"
    } else {
        composed
    };
    let does = match does {
        "admits" => "admitted",
        "reserves" => "admitted by one with a reserve",
        _ => "refused",
    };
    format!("{composed}: {limits} on {keys}{skipped}, {does}")
}

/// Instructions of one shaped call.
fn shaped(place: usize) -> u64 {
    let turns = |turns| total(&format!("shaper {place}"), turns);
    (turns(3) - turns(1)) / (2 * cost::STEPS) as u64
}

/// Instructions of one step.
fn count(contender: &str) -> u64 {
    (total(contender, MANY) - total(contender, FEW)) / (MANY - FEW) as u64
}

fn total(contender: &str, steps: usize) -> u64 {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*counted_steps*",
        ])
        .arg(env::current_exe().expect("a running program has a path"))
        .args([CHILD, contender, &steps.to_string()])
        .output()
        .expect("valgrind runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .map(|(_, number)| number.trim());
    collected
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| {
            panic!(
                "callgrind counted \
        nothing: {text}"
            )
        })
}

/// One contender's steps, in a process of their own.
pub fn child(args: &[String]) {
    let [contender, steps] = args else { return };
    let steps: usize = steps.parse().expect("a number of steps");
    let addresses = |keys: u32| {
        (0..steps)
            .map(move |n| address(n as u32 % keys))
            .collect::<Vec<_>>()
    };
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
            let place = shaper
                .trim_start_matches("shaper ")
                .parse()
                .expect("a row's number");
            cost::turns(place, steps, |turns, turn| counted_steps(turns, turn));
        }
        other => {
            let place: usize = other
                .trim_start_matches("layer ")
                .parse()
                .expect("a row's number");
            let (_, app) = layer::counted().swap_remove(place);
            drop(layer::answer(app.clone(), layer::request()));
            // A step makes its request and drops it, as a server does: what is made before the
            // counted part and freed in it makes the allocator take other ways.
            counted_steps((0..steps).collect(), &mut |_: usize| {
                drop(black_box(layer::answer(app.clone(), layer::request())))
            });
        }
    }
}

/// The steps of a set, as [`SETS`] names it.
fn decide_set(name: &str, steps: usize) {
    let [_, composed, limits, keys, skipped, does] = name.split(' ').collect::<Vec<_>>()[..] else {
        panic!("six words: {name}")
    };
    let (is_new, keys) = (keys == "new", if keys == "new" { "1" } else { keys });
    let [limits, keys, skipped] = [limits, keys, skipped].map(|n| {
        n.parse::<u32>().expect(
            "a \
        number",
        )
    });
    let limit = if does == "refuses" {
        Limit::REFUSES
    } else {
        Limit::NEVER_REFUSES
    };
    let policy = |n| {
        let gcra = Gcra::new(Rate::new(1, limit.every)).burst(limit.burst.into());
        Policy::new(&format!("member {n}"), gcra)
            .expect("the limit is valid")
            .into()
    };
    let mut policies: Vec<PolicyTree> = (0..limits).map(policy).collect();
    let tree = match composed {
        "all" => PolicyTree::All(policies),
        "any" => PolicyTree::Any(policies, AnyCharge::First),
        _ => {
            let two = policies.split_off(policies.len() - 2);
            policies.push(PolicyTree::Any(two, AnyCharge::First));
            PolicyTree::All(policies)
        }
    };
    let throttle = Throttle::with(tree, 1_000_000);
    // The first one applies: it is what the others are beside.
    let call = |n, first_key| match n {
        n if n > 0 && n <= skipped => Call::SKIP,
        0 if does == "reserves" => Call::from(Key::from(address(first_key))).reserving(1),
        n => Call::from(Key::from(address(first_key + n % keys))),
    };
    let calls = |first_key| (0..limits).map(|n| call(n, first_key)).collect::<Vec<_>>();
    // Each member of an `any` is charged once, so that all have a state.
    (0..limits).for_each(|_| _ = throttle.ask(&calls(0)));
    let steps: Vec<_> = (1..=steps as u32)
        .map(|step| calls(if is_new { step } else { 0 }))
        .collect();
    counted_steps(steps.iter().collect(), &mut |calls: &Vec<Call>| {
        _ = black_box(throttle.ask(calls))
    });
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
