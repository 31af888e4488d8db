//! Row 9: what a layer adds to the time of a build.

use std::fs;
use std::time::Instant;

use super::page::{Row, Table};
use super::small_app::{HELLO, SmallApp, THROTTLE, TOWER_GOVERNOR};

pub const ROW: Row = Row {
    word: "build",
    title: "A clean build of a small app, and its crates",
    about: "`cargo build` (debug) of axum's hello with each layer, into an empty target folder, \
        after all crates
were downloaded; the versions are those of this page. *Processor* is the time of all processors \
        together, which other
programs change least, and so the ratio is of it. *Crates* are all that the app needs at run \
        time, of `cargo tree -e
normal`. limitador and quota are added as libraries, as their documentation says. This row takes \
        minutes and runs
only when it is named.",
    run,
};

const APPS: [(&str, &str); 7] = [
    ("axum alone", ""),
    ("throttle", THROTTLE),
    ("tower_governor, `axum`", TOWER_GOVERNOR),
    ("axum-governor", r#"axum-governor = "2""#),
    (
        "rate-net, `tower`",
        r#"rate-net = { version = "2", features = ["tower"] }"#,
    ),
    ("quota", r#"quota = "0.3""#),
    (
        "limitador, in memory only",
        r#"limitador = { version = "0.14", default-features = false }"#,
    ),
];

fn run() -> String {
    // The first one only warms up the disk's cache.
    built(THROTTLE);
    let built = APPS.map(|(_, dependency)| built(dependency));
    let mut table = Table::new(&["app", "seconds", "processor", "÷ axum alone", "crates"]);
    for ((name, _), app) in APPS.iter().zip(&built) {
        table.row(&[
            (*name).to_owned(),
            format!("{:.1}", app.seconds),
            format!("{:.1} s", app.processor),
            format!("{:.2}", app.processor / built[0].processor),
            app.crates.to_string(),
        ]);
    }
    table.text()
}

struct Build {
    seconds: f64,
    /// Seconds of the processor in all of cargo's processes.
    processor: f64,
    crates: usize,
}

/// The crates of the layers are compiled and linked whether the app names them or not.
fn built(dependency: &str) -> Build {
    let app = SmallApp::new(dependency, HELLO);
    let tree = app.cargo(&["tree", "-e", "normal", "--prefix", "none"]);
    let mut crates: Vec<&str> = tree
        .lines()
        .filter_map(|line| line.split(" (").next())
        .collect();
    crates.sort_unstable();
    crates.dedup();
    let (start, spent) = (Instant::now(), processor_of_children());
    app.cargo(&["build", "--offline"]);
    Build {
        seconds: start.elapsed().as_secs_f64(),
        processor: processor_of_children() - spent,
        // Without the app itself.
        crates: crates.len() - 1,
    }
}

/// Seconds of the processor that ended processes of this one have taken.
fn processor_of_children() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("a Linux machine");
    // After the name, which may have spaces: the 14th and 15th field, in hundredths.
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let fields = fields.split_whitespace().skip(13).take(2);
    let ticks: u32 = fields.filter_map(|field| field.parse::<u32>().ok()).sum();
    f64::from(ticks) / 100.0
}
