//! The files of limits, and what follows them while the server runs.

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
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            anyhow::Ok((path.display().to_string(), text))
        };
        if !path.is_dir() {
            return Ok(Self(vec![read(path.to_owned())?]));
        }
        let folder =
            std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut files = Vec::new();
        for entry in folder {
            let path = entry?.path();
            let is_yaml = path
                .extension()
                .is_some_and(|extension| extension == "yaml" || extension == "yml");
            if is_yaml && path.is_file() {
                files.push(read(path)?);
            }
        }
        files.sort_unstable();
        Ok(Self(files))
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
            let files = match read {
                Ok(Ok(files)) if files != self => files,
                Ok(Ok(_)) | Err(_) => continue,
                Ok(Err(error)) => {
                    tracing::error!(
                        error = format!("{error:#}"),
                        "the former limits stay in force"
                    );
                    continue;
                }
            };
            match files.config(is_shadow) {
                Ok(config) => {
                    tracing::info!(domains = config.domains.len(), "other limits are in force");
                    metrics::counter!("ratelimit_config_load_success").increment(1);
                    service.replace(config);
                }
                Err(error) => {
                    tracing::error!(
                        error = format!("{error:#}"),
                        "the former limits stay in force"
                    );
                    metrics::counter!("ratelimit_config_load_error").increment(1);
                }
            }
            // Wrong files are reported once.
            self = files;
        }
    }
}
