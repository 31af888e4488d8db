//! The table of the guide, from runs at a round trip of 0.12 s and a pace of 50 a second.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use super::CASES;
use super::client::{Client, Outcome};

const GUIDE: &str = "../throttle-tower/src/guide/outbound_calls.md";
const HEAD: &str = "| upstream | calls | a loop | a pace | obeying |\n|---|---|---|---|---|\n";

fn cell(outcome: &Outcome) -> String {
    let Outcome {
        answered,
        refused_there,
        inside_wait,
        bans,
        ..
    } = outcome;
    match bans {
        0 => format!("{answered} / {refused_there} / {inside_wait}"),
        1 => format!("{answered} / {refused_there} / {inside_wait}, a ban"),
        bans => format!("{answered} / {refused_there} / {inside_wait}, {bans} bans"),
    }
}

/// With `THROTTLE_WRITE_PICTURES=1` it writes the table, and fails all the same: look at it, and
/// run it again.
#[test]
fn committed_table_of_upstreams_is_that_of_these_runs() {
    let mut table = String::from(HEAD);
    for case in &CASES {
        let pace = 50;
        let clients = [
            Client::Loop,
            Client::Plain { pace },
            Client::Obeying { pace, slows: false },
        ];
        let outcomes = clients.map(|client| case.outcome(client, 0.12));
        let [looped, plain, obeying] = outcomes.each_ref().map(cell);
        let wanted = outcomes[0].wanted;
        let name = case.name;
        writeln!(
            table,
            "| {name} | {wanted} | {looped} | {plain} | {obeying} |"
        )
        .unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GUIDE);
    let guide = fs::read_to_string(&path).unwrap();
    let start = guide.find(HEAD).expect("the table's head");
    let end = start + guide[start..].find("\n\n").expect("an end") + 1;
    if guide[start..end] != table {
        if env::var_os("THROTTLE_WRITE_PICTURES").is_some() {
            fs::write(path, [&guide[..start], &*table, &guide[end..]].concat()).unwrap();
        }
        let remedy =
            "THROTTLE_WRITE_PICTURES=1 cargo test -p throttle-tests --all-features --test shape";
        panic!("the table is not current; write it with {remedy}");
    }
}
