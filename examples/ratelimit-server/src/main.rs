//! A rate limit service for Envoy and other proxies; see README.md.

mod files;
mod limits;
mod server;
mod service;
mod settings;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::Parser;

use crate::files::Files;
use crate::server::Server;
use crate::settings::Settings;

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
    Server::start(settings).await?.run().await
}
