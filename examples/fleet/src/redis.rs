//! The Redis that the fleet shares: one that is given, or one of the demo's own.

use std::error::Error;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use throttle_redis::RedisBackend;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

pub struct Redis {
    pub url: String,
    /// The demo's own: its port, and the process while it runs.
    own: Option<(u16, Option<Child>)>,
}

impl Redis {
    /// The one at the URL, or one that is started.
    pub async fn find(url: Option<String>) -> Result<Self, Box<dyn Error>> {
        let redis = match url {
            Some(url) => Self { url, own: None },
            None => {
                // It is free again when the listener is dropped.
                let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
                println!("REDIS_URL is not set: starting a redis-server on 127.0.0.1:{port}");
                Self { url: format!("redis://127.0.0.1:{port}"), own: Some((port, Some(spawn(port)?))) }
            }
        };
        let backend = RedisBackend::new(&redis.url)?;
        let give_up = Instant::now() + Duration::from_secs(5);
        while !backend.is_healthy() {
            if Instant::now() > give_up {
                return Err(match redis.own {
                    Some(_) => "the redis-server that was started does not answer within 5 s".into(),
                    None => "no Redis answers at REDIS_URL within 5 s; is it running, and the URL right?".into(),
                });
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(redis)
    }

    /// Kills the demo's own one, as an accident would.
    pub async fn stop(&mut self) -> Result<(), std::io::Error> {
        match &mut self.own {
            Some((_, server)) => match server.take() {
                Some(mut server) => server.kill().await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Starts it again, on the same port.
    pub fn start(&mut self) -> Result<(), String> {
        if let Some((port, server @ None)) = &mut self.own {
            *server = Some(spawn(*port)?);
        }
        Ok(())
    }
}

fn spawn(port: u16) -> Result<Child, String> {
    let mut server = Command::new("redis-server");
    server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    // A group of its own, so that Ctrl-C stops the fleet first.
    #[cfg(unix)]
    server.process_group(0);
    server.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "there is no redis-server to start: install it (apt-get install redis-server, or brew \
                                install redis), or say where one is, as in REDIS_URL=redis://127.0.0.1:6379"
            .to_owned(),
        _ => format!("cannot start redis-server: {error}"),
    })
}
