//! Row 9: what a layer adds to the time of a build.

use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use super::page::{Row, Table};

pub const ROW: Row = Row {
    word: "build",
    title: "A clean build of a small app, and its crates",
    about: "`cargo build` (debug) of axum's hello with each layer, into an empty target folder, \
        after all crates
were downloaded; the versions are those of this page. *Crates* are all that the app needs at run \
time, of `cargo
tree -e normal`. limitador and quota are added as libraries, as their documentation says. This \
row takes minutes and
runs only when it is named.",
    run,
};

const THROTTLE: &str = concat!(
    r#"tower-throttle = { path = ""#,
    env!("CARGO_MANIFEST_DIR"),
    r#"/../../throttle-tower", features = ["axum"] }"#
);

const APPS: [(&str, &str); 7] = [
    ("axum alone", ""),
    ("throttle", THROTTLE),
    (
        "tower_governor, `axum`",
        r#"tower_governor = { version = "0.8", default-features = false, features = ["axum"] }"#,
    ),
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

const MANIFEST: &str = r#"[workspace]
[package]
name = "hello"
version = "0.0.0"
edition = "2024"
[dependencies]
axum = "0.8"
tokio = { version = "1", features = ["macros", "net", "rt-multi-thread"] }
"#;

/// The crates of the layers are compiled and linked whether the app names them or not.
const MAIN: &str = r#"
#[tokio::main]
async fn main() {
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
"#;

fn run() -> String {
    let folder = env::temp_dir().join(format!("throttle-peers-build-{}", std::process::id()));
    // The first one only warms up the disk's cache.
    built(&folder, THROTTLE);
    let built = APPS.map(|(_, dependency)| built(&folder, dependency));
    let mut table = Table::new(&["app", "seconds", "÷ axum alone", "crates"]);
    for ((name, _), (seconds, crates)) in APPS.iter().zip(built) {
        let ratio = format!("{:.2}", seconds / built[0].0);
        table.row(&[
            (*name).to_owned(),
            format!("{seconds:.1}"),
            ratio,
            crates.to_string(),
        ]);
    }
    table.text()
}

/// Seconds, and the number of crates.
fn built(folder: &Path, dependency: &str) -> (f64, usize) {
    fs::create_dir_all(folder.join("src")).expect("a temporary folder");
    fs::write(
        folder.join("Cargo.toml"),
        format!("{MANIFEST}{dependency}\n"),
    )
    .expect(
        "the folder \
        can be written",
    );
    fs::write(folder.join("src/main.rs"), MAIN).expect("the folder can be written");
    // The same versions as here, so that nothing is chosen anew.
    fs::write(folder.join("Cargo.lock"), include_str!("../../Cargo.lock")).expect(
        "the folder can \
        be written",
    );
    let cargo = |args: &[&str]| {
        let command = Command::new("cargo")
            .args(args)
            .current_dir(folder)
            .env_remove("CARGO_TARGET_DIR")
            .output();
        let output = command.expect("cargo runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("cargo prints text")
    };
    cargo(&["fetch"]);
    let tree = cargo(&["tree", "-e", "normal", "--prefix", "none"]);
    let mut crates: Vec<&str> = tree
        .lines()
        .filter_map(|line| line.split(" (").next())
        .collect();
    crates.sort_unstable();
    crates.dedup();
    let start = Instant::now();
    cargo(&["build", "--offline"]);
    let seconds = start.elapsed().as_secs_f64();
    let _ = fs::remove_dir_all(folder);
    // Without the app itself.
    (seconds, crates.len() - 1)
}
