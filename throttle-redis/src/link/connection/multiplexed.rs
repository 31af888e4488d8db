//! A connection of the `redis` crate that many calls share, and that knows whether it has ended.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError,
};

use super::end::End;
use super::translate::{CONNECT_TIMEOUT, connect_fault, fault, reply};
use super::{Command, Connection, Fault, FaultKind, Pending, Reply};

#[derive(Clone)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Multiplexed {
    pub(super) connection: MultiplexedConnection,
    pub(super) end: Arc<End>,
}

/// The backend enforces the deadline of a decision; the limits here only end calls that no decision
/// waits for any more.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
}

impl Multiplexed {
    /// Opens the only connection to a server.
    pub(super) async fn connect(info: ConnectionInfo) -> Result<Box<dyn Connection>, Fault> {
        match Self::open(info, config()).await {
            Ok(connection) => Ok(Box::new(connection)),
            Err(error) => Err(connect_fault(&error)),
        }
    }

    /// Opens a connection in RESP3, in which the client reports the end of a connection. A server
    /// or proxy without it is asked again in RESP2. There the end is noticed only by the first call
    /// after it.
    pub(super) async fn open(
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let (end, driven) = End::of_driven();
        let newer = with_protocol(&info, ProtocolVersion::RESP3)?;
        let opened = newer
            .get_multiplexed_async_connection_with_config(&config.clone().set_push_sender(driven))
            .await;
        match opened {
            Ok(connection) => Ok(Self { connection, end }),
            Err(error) if lacks_resp3(&error) => {
                let older = with_protocol(&info, ProtocolVersion::RESP2)?;
                let connection = older
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?;
                Ok(Self {
                    connection,
                    end: Arc::default(),
                })
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(feature = "cluster")]
impl Multiplexed {
    /// Sends `ASKING` and a command, with nothing in between.
    pub(super) async fn ask(&self, command: &Command) -> Result<Reply, Fault> {
        let mut both = redis::Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command.words().clone());
        let replies = self
            .connection
            .clone()
            .send_packed_commands(&both, 0, 2)
            .await
            .map_err(|error| fault(&error))?;
        let last = replies.into_iter().nth(1);
        last.map_or_else(
            || {
                Err(Fault::new(
                    FaultKind::Other,
                    "the server answered one of two commands",
                ))
            },
            reply,
        )
    }
}

/// Servers and proxies say in different words that they know no RESP3.
fn lacks_resp3(error: &RedisError) -> bool {
    let is_unknown = |detail: &str| detail.to_ascii_lowercase().contains("unknown command");
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(is_unknown)
}

fn with_protocol(info: &ConnectionInfo, protocol: ProtocolVersion) -> Result<Client, RedisError> {
    let settings = info.redis_settings().clone().set_protocol(protocol);
    Client::open(info.clone().set_redis_settings(settings))
}

impl Connection for Multiplexed {
    fn call(&self, command: Command) -> Pending<Reply> {
        if self.end.has_come() {
            return Box::pin(std::future::ready(Err(ended())));
        }
        let mut connection = self.connection.clone();
        Box::pin(async move {
            match connection.send_packed_command(command.words()).await {
                Ok(value) => reply(value),
                Err(error) => Err(fault(&error)),
            }
        })
    }

    fn on_end(&self, notify: Box<dyn FnOnce() + Send>) {
        self.end.then(notify);
    }
}

#[cold]
pub(super) fn ended() -> Fault {
    Fault::new(FaultKind::NotSent, "the connection has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_resp3_is_known_by_its_words() {
        for (line, lacks) in [
            (
                "-ERR unknown command 'HELLO', with args beginning with: '3'",
                true,
            ),
            (
                "-ERR unknown command `HELLO`, with args beginning with: `3`",
                true,
            ),
            ("-ERR Unknown command HELLO", true),
            ("-NOPROTO unsupported protocol version", true),
            ("-WRONGPASS invalid username-password pair", false),
            (
                "-NOPERM this user has no permissions to run the 'hello' command",
                false,
            ),
            ("-ERR max number of clients reached", false),
        ] {
            let answer = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("RESP");
            let error = answer.extract_error().expect_err(line);
            assert_eq!(lacks_resp3(&error), lacks, "{line}");
        }
        let dropped = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(
            !lacks_resp3(&dropped)
                && lacks_resp3(&RedisError::from((ErrorKind::RESP3NotSupported, "RESP2")))
        );
    }
}
