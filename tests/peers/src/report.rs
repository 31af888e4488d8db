//! The printed report.

use std::fs;

const VERSIONED: [&str; 16] = [
    "tower-throttle-core",
    "tower-throttle",
    "tower-throttle-redis",
    "governor",
    "tower_governor",
    "axum-governor",
    "limitador",
    "leaky-bucket",
    "quota",
    "rate-net",
    "tower",
    "tokio",
    "axum",
    "dashmap",
    "quanta",
    "parking_lot",
];

/// Machine, versions and command: a figure means nothing without them.
pub fn header() {
    println!("{}", machine());
    println!(
        "command   cargo run --release -- {}",
        std::env::args().skip(1).collect::<Vec<_>>().join(" ")
    );
}

/// Machine and versions, on a line each.
pub fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("?", |(_, m)| m);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let lock = include_str!("../Cargo.lock");
    let versions = lock.split("[[package]]").filter_map(|entry| {
        let field = |name: &str| {
            entry
                .split_once(&format!("{name} = \""))?
                .1
                .split('"')
                .next()
        };
        let (name, version) = (field("name")?, field("version")?);
        VERSIONED
            .contains(&name)
            .then(|| format!("{name} {version}"))
    });
    format!(
        "machine   {model}, {cores} threads\nversions  {}",
        versions.collect::<Vec<_>>().join(", ")
    )
}

pub fn title(text: &str, columns: &[&str]) {
    println!("\n## {text}\n");
    println!("| {} |", columns.join(" | "));
    println!("|{}", "---|".repeat(columns.len()));
}

pub fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Median (least – most).
pub fn spread(values: &[f64], digits: usize) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!(
        "{:.digits$} ({least:.digits$}–{most:.digits$})",
        median(values)
    )
}

/// How many times longer `theirs` took than `ours`: the ratio of the medians, and the least and the
/// greatest ratio of two measurements that are neighbours in time.
pub fn ratio(theirs: &[f64], ours: &[f64]) -> String {
    let pairs: Vec<f64> = theirs
        .iter()
        .zip(ours)
        .map(|(theirs, ours)| theirs / ours)
        .collect();
    let least = pairs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = pairs.iter().copied().fold(0.0, f64::max);
    format!(
        "**{:.2}** ({least:.2}–{most:.2})",
        median(theirs) / median(ours)
    )
}
