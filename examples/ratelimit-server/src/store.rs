//! The store that a URL names.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use throttle_core::snapshot::Saver;
use throttle_core::{BoxBackend, MemoryBackend};
use throttle_redis::{Cluster, RedisBackend, Sentinel, Single};

use crate::settings::Settings;

/// Counts that are lost with a process that is killed.
const BETWEEN_SAVES: Duration = Duration::from_secs(10);

/// A store, and what saves it when it is dropped.
pub struct Store {
    pub backend: BoxBackend,
    pub saver: Option<Saver>,
}

impl Store {
    /// Connects to nothing yet.
    pub fn open(settings: &Settings) -> anyhow::Result<Self> {
        let url = settings.store.as_str();
        if url == "memory" {
            return Ok(Self::in_memory(settings.snapshot.clone()));
        }
        if settings.snapshot.is_some() {
            bail!(
                "snapshot is set and the store is not memory: remove it, because a Redis keeps its counts itself"
            );
        }
        let builder = match url.split_once("://") {
            Some(("redis" | "rediss", _)) => RedisBackend::builder(Single::new(url)?),
            Some(("redis+cluster", servers)) => {
                let urls = urls(servers);
                let cluster = RedisBackend::builder(Cluster::new(urls.iter().map(String::as_str))?);
                if settings.per_key_slot {
                    cluster.per_key_slot()
                } else {
                    cluster.single_slot("ratelimit")
                }
            }
            Some(("redis+sentinel", rest)) => {
                let Some((servers, master)) = rest.rsplit_once('/') else {
                    bail!(
                        "store names no master: write redis+sentinel://host:26379,host:26379/master"
                    );
                };
                let split = servers.rsplit_once('@');
                let credentials = split.map(|(user, _)| format!("redis://{user}@master"));
                let servers = split.map_or(servers, |(_, servers)| servers);
                let urls = urls(servers);
                RedisBackend::builder(Sentinel::new(
                    urls.iter().map(String::as_str),
                    master,
                    credentials.as_deref(),
                )?)
            }
            // Not shown: it may hold a password.
            _ => bail!(
                "store is no URL that is known: write memory, redis://, rediss://, redis+sentinel:// or redis+cluster://"
            ),
        };
        let deadline = Duration::from_millis(settings.store_milliseconds);
        let builder = builder.prefix("ratelimit").deadline(deadline);
        Ok(Self {
            backend: BoxBackend::new(builder.metrics("redis").build()?),
            saver: None,
        })
    }

    fn in_memory(snapshot: Option<PathBuf>) -> Self {
        let Some(path) = snapshot else {
            let (backend, saver) = (BoxBackend::new(MemoryBackend::new()), None);
            return Self { backend, saver };
        };
        let backend = MemoryBackend::builder().restore_file(&path);
        let backend = backend.unwrap_or_else(|error| {
            tracing::error!(%error, "the limits begin with unused keys");
            MemoryBackend::new()
        });
        let saver = Some(backend.save_every(path, BETWEEN_SAVES, |saved| {
            if let Err(error) = saved {
                tracing::error!(%error, "the counts were not saved");
            }
        }));
        let backend = BoxBackend::new(backend);
        Self { backend, saver }
    }
}

fn urls(servers: &str) -> Vec<String> {
    let servers = servers.split(',');
    servers.map(|server| format!("redis://{server}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(store: &str) -> Result<Store, String> {
        Store::open(&Settings {
            store: store.to_owned(),
            ..Settings::default()
        })
        .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn one_url_names_any_store() {
        for url in [
            "memory",
            "redis://user:password@r:6379/1",
            "rediss://r",
            "redis+cluster://a:7000,b:7000",
            "redis+sentinel://a:26379,b:26379/main",
            "redis+sentinel://user:password@a:26379/main",
        ] {
            assert!(opened(url).is_ok(), "{url}: {:?}", opened(url).err());
        }
    }

    #[tokio::test]
    async fn wrong_url_is_an_error_that_shows_no_password() {
        for url in [
            "",
            "memroy",
            "http://user:hunter2@r",
            "redis+sentinel://hunter2@a:26379",
        ] {
            let error = opened(url).err().unwrap();
            assert!(
                !error.contains("hunter2") && error.contains("write"),
                "{error}"
            );
        }
    }
}
