//! A rate limit service for Envoy and other proxies; see README.md.

mod by_rules;
mod check;
mod exporter;
mod files;
mod http;
mod json;
mod limits;
mod server;
mod service;
mod settings;
mod store;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Parser;
use tracing::Level;
use tracing_subscriber::EnvFilter;

use crate::files::Files;
use crate::server::Server;
use crate::settings::Settings;
use crate::store::Store;

/// A rate limit service for Envoy and other proxies
#[derive(Parser)]
struct Arguments {
    /// The file of settings, such as throttle.toml
    settings: PathBuf,
    /// Read all files, report what is wrong with them, and end
    #[arg(long)]
    check: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let settings = Settings::read(&arguments.settings, std::env::vars())?;
    if arguments.check {
        let config = Files::read(settings.limits.as_deref())?.config(settings.shadow_mode)?;
        print!("{}", config.dump());
        return Ok(());
    }
    log(settings.json_logs);
    // First, so that every metric is there from the first request on.
    let metrics = exporter::install()?;
    let store = Store::open(&settings)?;
    Server::start(store, settings, metrics).await?.run().await
}

/// `RUST_LOG` says what is logged; without it, all but details.
fn log(as_json: bool) {
    let filter = EnvFilter::builder()
        .with_default_directive(Level::INFO.into())
        .from_env_lossy();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stdout().is_terminal());
    if as_json {
        lines.json().init();
    } else {
        lines.init();
    }
}
