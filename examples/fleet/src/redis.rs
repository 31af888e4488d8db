//! The Redis that the fleet shares: the one of `REDIS_URL`, or one that the demo starts.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use throttle_redis::RedisBackend;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

pub struct Redis {
    pub url: String,
    /// The port of the demo's own Redis, and its process while it runs.
    own: Option<(u16, Option<Child>)>,
}

impl Redis {
    /// Returns the Redis at the URL, or starts one.
    pub async fn find(url: Option<&str>) -> anyhow::Result<Self> {
        let redis = match url {
            Some(url) => Self {
                url: url.to_owned(),
                own: None,
            },
            None => {
                // The port is free again when this listener is dropped.
                let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
                    .local_addr()?
                    .port();
                println!("REDIS_URL is not set: starting a redis-server on 127.0.0.1:{port}");
                Self {
                    url: format!("redis://127.0.0.1:{port}"),
                    own: Some((port, Some(spawn(port)?))),
                }
            }
        };
        let backend = RedisBackend::new(&redis.url)?;
        let give_up = Instant::now() + Duration::from_secs(5);
        while !backend.is_healthy() {
            if Instant::now() > give_up {
                match redis.own {
                    Some(_) => {
                        bail!("the redis-server that the demo started does not answer within 5 s")
                    }
                    None => bail!(
                        "no Redis answers at REDIS_URL within 5 s: is it running, and is the URL \
                            right?"
                    ),
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(redis)
    }

    /// Kills the demo's own Redis, as an accident would.
    pub async fn stop(&mut self) -> Result<(), std::io::Error> {
        match self.own.as_mut().and_then(|(_, server)| server.take()) {
            Some(mut server) => server.kill().await,
            None => Ok(()),
        }
    }

    /// Starts it again, on the same port.
    pub fn start(&mut self) -> anyhow::Result<()> {
        if let Some((port, server @ None)) = &mut self.own {
            *server = Some(spawn(*port)?);
        }
        Ok(())
    }
}

fn spawn(port: u16) -> anyhow::Result<Child> {
    let mut server = Command::new("redis-server");
    server.args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    // A process group of its own keeps Ctrl-C from stopping Redis before the fleet.
    #[cfg(unix)]
    server.process_group(0);
    server.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn().context(
        "cannot start a redis-server: install it (apt-get install redis-server, or brew install \
            redis), or name a \
         running one, as in REDIS_URL=redis://127.0.0.1:6379",
    )
}
