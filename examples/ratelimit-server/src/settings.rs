//! The settings: a file, and variables of the environment that go before it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

/// `RATELIMIT_STORE` is the field `store`, and so on.
const PREFIX: &str = "RATELIMIT_";

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Where Envoy calls.
    pub grpc: SocketAddr,
    /// Where other proxies call.
    pub http: SocketAddr,
    /// Metrics and the limits in force, for operators.
    pub admin: SocketAddr,
    /// A file of limits by descriptors, or a folder of them.
    pub limits: Option<PathBuf>,
    /// Domains whose limits are in rule files, for requests by descriptors.
    pub domains: BTreeMap<String, PathBuf>,
    /// A file of limits for `/check`.
    pub rules: Option<PathBuf>,
    /// `memory`, or the URL of a Redis.
    pub store: String,
    /// How many milliseconds a decision of a Redis may take.
    pub store_milliseconds: u64,
    /// With a cluster: each key where it hashes to. All on one server without it.
    pub per_key_slot: bool,
    /// Where counts in memory are kept.
    pub snapshot: Option<PathBuf>,
    /// Whether answers bring headers for the client.
    pub headers: bool,
    /// Whether answers tell Envoy the metadata of the descriptors that passed.
    pub dynamic_metadata: bool,
    /// Whether every limit only watches.
    pub shadow_mode: bool,
    /// How many seconds a shutdown waits for clients.
    pub shutdown_seconds: u64,
    /// Whether log lines are JSON.
    pub json_logs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            grpc: local(8081),
            http: local(8080),
            admin: local(6070),
            limits: None,
            domains: BTreeMap::new(),
            rules: None,
            store: "memory".to_owned(),
            store_milliseconds: 25,
            per_key_slot: false,
            snapshot: None,
            headers: true,
            dynamic_metadata: false,
            shadow_mode: false,
            shutdown_seconds: 10,
            json_logs: false,
        }
    }
}

impl Settings {
    /// Reads a file. Its paths are those from its folder.
    pub fn read(
        path: &Path,
        environment: impl Iterator<Item = (String, String)>,
    ) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let mut settings =
            Self::parse(&text, environment).with_context(|| format!("in {}", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let Self {
            limits,
            rules,
            snapshot,
            domains,
            ..
        } = &mut settings;
        let paths = [limits, rules, snapshot].into_iter().flatten();
        for path in paths.chain(domains.values_mut()) {
            *path = folder.join(&*path);
        }
        Ok(settings)
    }

    fn parse(
        text: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> anyhow::Result<Self> {
        // The text alone first: its errors have lines.
        toml::from_str::<Self>(text)?;
        let mut table: toml::Table = text.parse()?;
        for (name, value) in environment {
            let Some(field) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let value = value.parse().unwrap_or(toml::Value::String(value));
            table.insert(field.to_ascii_lowercase().replace('_', "-"), value);
        }
        table
            .try_into::<Self>()
            .context("with the variables RATELIMIT_… of the environment")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, environment: &[(&str, &str)]) -> Result<Settings, String> {
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::parse(text, environment).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn environment_goes_before_the_file() {
        let settings = parsed(
            "store = \"memory\"\nheaders = true",
            &[
                ("RATELIMIT_STORE", "redis://r:6379"),
                ("RATELIMIT_SHUTDOWN_SECONDS", "3"),
                ("RATELIMIT_HEADERS", "false"),
                ("PATH", "/bin"),
            ],
        )
        .unwrap();
        assert_eq!(
            (
                settings.store.as_str(),
                settings.shutdown_seconds,
                settings.headers
            ),
            ("redis://r:6379", 3, false)
        );
    }

    #[test]
    fn unknown_field_is_an_error_in_both() {
        let error = parsed("stroe = \"memory\"", &[]).unwrap_err();
        assert!(
            error.contains("line 1") && error.contains("stroe"),
            "{error}"
        );
        let error = parsed("", &[("RATELIMIT_STROE", "memory")]).unwrap_err();
        assert!(
            error.contains("stroe") && error.contains("environment"),
            "{error}"
        );
    }
}
