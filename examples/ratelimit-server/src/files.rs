//! The files of limits, and what follows them while the server runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::limits::Config;
use crate::service::Service;

/// How often the files are read. A comparison of contents also sees what a notification misses: a
/// volume of the network, and the links of a Kubernetes `ConfigMap`.
const BETWEEN_READS: Duration = Duration::from_secs(1);

/// Files of limits, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files(Vec<(String, String)>);

impl Files {
    /// Reads a file, or the YAML files of a folder.
    pub fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let shown = path.display();
        let mut paths = vec![path.to_owned()];
        if path.is_dir() {
            let folder = std::fs::read_dir(path).and_then(|folder| {
                let paths = folder.map(|entry| entry.map(|entry| entry.path()));
                paths.collect()
            });
            paths = folder.with_context(|| format!("cannot read {shown}"))?;
            let is_yaml = |name: &OsStr| name == "yaml" || name == "yml";
            paths.retain(|path| path.is_file() && path.extension().is_some_and(is_yaml));
            paths.sort_unstable();
        }
        let read = |path: PathBuf| {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {name}"))?;
            anyhow::Ok((name, text))
        };
        Ok(Self(paths.into_iter().map(read).collect::<Result<_, _>>()?))
    }

    /// The limits of all files.
    pub fn config(&self, is_shadow: bool) -> anyhow::Result<Config> {
        let mut config = Config::new(is_shadow);
        for (name, text) in &self.0 {
            config.add(name, text)?;
        }
        Ok(config)
    }

    /// Puts the limits in force whenever the files change. Wrong files change nothing.
    pub async fn follow(mut self, path: Option<PathBuf>, is_shadow: bool, service: Service) {
        loop {
            tokio::time::sleep(BETWEEN_READS).await;
            let path = path.clone();
            let read = tokio::task::spawn_blocking(move || Self::read(path.as_deref())).await;
            let config = match read {
                Ok(Ok(files)) if files != self => {
                    // Wrong files are reported once.
                    self = files;
                    self.config(is_shadow)
                }
                Ok(Err(error)) => Err(error),
                Ok(Ok(_)) | Err(_) => continue,
            };
            let counter = match config {
                Ok(config) => {
                    tracing::info!(domains = config.domains.len(), "other limits are in force");
                    service.replace(config);
                    "ratelimit_config_load_success"
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "the former limits stay in force");
                    "ratelimit_config_load_error"
                }
            };
            metrics::counter!(counter).increment(1);
        }
    }
}
