//! What the scripts cost the server.

use throttle_core::{Gcra, IntoAlgorithm, Policy, PolicySet, PolicyTree, Rate};
use throttle_test_servers::Server;

use crate::capture::Captured;
use crate::load::benchmark;
use crate::measure::{Sample, median, rounds, sample};

/// The GCRA as it is usually written: floating point, state as text.
const FLOAT: &str = "
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local interval, tolerance = 1000000 / 1000, 1000000
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
tat = math.max(tat, now) + interval
local allow_at = tat - tolerance
if allow_at > now then return {0, 0, math.ceil(allow_at - now)} end
redis.call('SET', KEYS[1], string.format('%.17g', tat), 'PX', math.ceil((tat - now) / 1000))
return {1, math.floor((tolerance - (tat - now)) / interval), 0}";

const COUNT: usize = 200_000;

pub(crate) fn policy(name: &str) -> Policy {
    Policy::new(
        name,
        Gcra::new(Rate::per_second(1_000))
            .into_algorithm()
            .expect("a rate"),
    )
    .expect("a policy")
}

pub(crate) fn run(server: &Server) {
    let one = Captured::of(server, PolicySet::new(policy("p")).expect("a set")).with_arguments();
    let three = ["p", "q", "r"].map(|name| policy(name).into()).to_vec();
    let three = Captured::of(
        server,
        PolicySet::new(PolicyTree::All(three)).expect("a set"),
    )
    .with_arguments();
    let key = "throttle{all}p:__rand_int__";
    let keys = [
        key,
        "throttle{all}q:__rand_int__",
        "throttle{all}r:__rand_int__",
    ];
    let rows: [(&str, &str, &[&str], usize); 6] = [
        (
            "float GCRA, text state, P=16",
            FLOAT,
            &["float:__rand_int__"],
            16,
        ),
        ("exact GCRA, P=16", &one, &[key], 16),
        (
            "float GCRA, text state, P=1",
            FLOAT,
            &["float:__rand_int__"],
            1,
        ),
        ("exact GCRA, P=1", &one, &[key], 1),
        ("three limits in one decision, P=16", &three, &keys, 16),
        ("three limits in one decision, P=1", &three, &keys, 1),
    ];
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); rows.len()];
    for _ in 0..rounds() {
        for (row, (_, script, keys, pipeline)) in rows.iter().enumerate() {
            let count = COUNT / if *pipeline == 1 { 4 } else { 1 };
            samples[row].push(sample(server, || {
                benchmark(server, script, keys, 50, *pipeline, count);
                (count as u64, Vec::new())
            }));
        }
    }
    println!("| script (redis-benchmark, 50 connections) | server CPU, µs a call |\n|---|---|");
    let cpu = |row: usize| median(&samples[row], |sample| sample.server);
    for (row, (name, ..)) in rows.iter().enumerate() {
        let (mid, least, most) = cpu(row);
        println!("| {name} | {mid:.2} ({least:.2}–{most:.2}) |");
    }
    println!(
        "\nexact ÷ float: {:.2} at P=16, {:.2} at P=1",
        cpu(1).0 / cpu(0).0,
        cpu(3).0 / cpu(2).0
    );
    println!(
        "three calls ÷ three limits in one: {:.2} at P=16, {:.2} at P=1\n",
        3.0 * cpu(1).0 / cpu(4).0,
        3.0 * cpu(3).0 / cpu(5).0
    );
}
