//! Row 10: what a layer adds to a program.

use std::fs;

use super::page::{Row, Table};
use super::small_app::{HELLO, SmallApp, THROTTLE, TOWER_GOVERNOR};

pub const ROW: Row = Row {
    word: "binary",
    title: "A small app as a file",
    about: "`cargo build --release` of axum's hello with cargo's default profile, stripped of \
        symbols. throttle has one layer of
two limits by the address and its default headers; tower_governor has one limit by the address \
and its headers, as it
knows no second one in a layer. This row takes minutes and runs only when it is named.",
    run,
};

const THROTTLE_LAYER: &str = r#"
    use throttle_tower::{ClientIp, Gcra, Rate, Route, ThrottleLayer, all, limit};
    let limits = all([
        limit("burst", Gcra::new(Rate::per_second(10)).burst(20)).by(ClientIp::peer()),
        limit("route", Gcra::new(Rate::per_minute(600))).by((Route, ClientIp::peer())),
    ]);
    let layer = ThrottleLayer::new(limits).unwrap();
"#;

const TOWER_GOVERNOR_LAYER: &str = r#"
    use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};
    let mut config = GovernorConfigBuilder::default();
    let config = config.per_millisecond(100).burst_size(20).use_headers().finish().unwrap();
    let layer = GovernorLayer::new(std::sync::Arc::new(config));
"#;

const APPS: [(&str, &str, &str); 3] = [
    ("axum alone", "", ""),
    ("throttle", THROTTLE, THROTTLE_LAYER),
    (
        "tower_governor, `axum`",
        TOWER_GOVERNOR,
        TOWER_GOVERNOR_LAYER,
    ),
];

fn run() -> String {
    let sizes = APPS.map(|(_, dependency, layer)| size(dependency, &main_with(layer)));
    let mut table = Table::new(&["app", "MB", "over axum alone, MB"]);
    for ((name, ..), bytes) in APPS.iter().zip(sizes) {
        let more = bytes.saturating_sub(sizes[0]);
        table.row(&[(*name).to_owned(), megabytes(bytes), megabytes(more)]);
    }
    table.text()
}

/// Axum's hello with a layer, and with the address of the peer whether a layer reads it or not.
fn main_with(layer: &str) -> String {
    let connected = "app.into_make_service_with_connect_info::<std::net::SocketAddr>()";
    let hello = HELLO
        .replace("fn main() {", &format!("fn main() {{{layer}"))
        .replace("(listener, app)", &format!("(listener, {connected})"));
    if layer.is_empty() {
        return hello;
    }
    hello.replace(r#"{ "hello" }));"#, r#"{ "hello" })).layer(layer);"#)
}

/// In bytes.
fn size(dependency: &str, main: &str) -> u64 {
    let app = SmallApp::new(dependency, main);
    let strip = r#"profile.release.strip = "symbols""#;
    app.cargo(&["build", "--offline", "--release", "--config", strip]);
    let program = fs::metadata(app.folder.join("target/release/hello"));
    program.expect("cargo has built the app").len()
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{:02}", bytes / 1_000_000, bytes % 1_000_000 / 10_000)
}
