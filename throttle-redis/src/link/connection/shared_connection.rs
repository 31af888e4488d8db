//! A connection of the `redis` crate that many calls share, and that knows whether it has ended.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError,
};

use super::end::End;
use super::translate::{connect_fault, fault, reply};
use super::{Command, Connection, ConnectionFuture, Fault, FaultKind, Reply};

pub(super) struct SharedConnection {
    connection: MultiplexedConnection,
    pub(super) end: Arc<End>,
}

impl SharedConnection {
    /// Opens the only connection to a server. The caller bounds the time.
    pub(super) async fn connect(info: ConnectionInfo) -> Result<Box<dyn Connection>, Fault> {
        match Self::open(info).await {
            Ok(connection) => Ok(Box::new(connection)),
            Err(error) => Err(connect_fault(&error)),
        }
    }

    /// Opens a connection in RESP3, in which the client reports the end of a connection. A server
    /// or proxy that refuses `HELLO`, or ends the connection after it, is connected to in RESP2.
    /// There the end is noticed only by the first call after it.
    pub(super) async fn open(info: ConnectionInfo) -> Result<Self, RedisError> {
        let error = match Self::in_resp3(&info).await {
            Err(error) if refuses_hello(&error) || has_ended(&error) => error,
            opened => return opened,
        };
        let older = Self::in_resp2(&info).await?;
        // A server that was just starting may have ended the first connection.
        if has_ended(&error)
            && let Ok(newer) = Self::in_resp3(&info).await
        {
            return Ok(newer);
        }
        Ok(older)
    }

    async fn in_resp3(info: &ConnectionInfo) -> Result<Self, RedisError> {
        let (end, driven) = End::of_driven();
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let connection = Client::open(info.clone().set_redis_settings(settings))?
            .get_multiplexed_async_connection_with_config(&config().set_push_sender(driven))
            .await?;
        Ok(Self { connection, end })
    }

    /// Sends no command that a proxy may not know. A proxy may accept a connection and refuse the
    /// first command, so a connection without an answer to `PING` is none.
    async fn in_resp2(info: &ConnectionInfo) -> Result<Self, RedisError> {
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        let mut connection = Client::open(info.clone().set_redis_settings(settings))?
            .get_multiplexed_async_connection_with_config(&config())
            .await?;
        match redis::cmd("PING").exec_async(&mut connection).await {
            // The user is known, and has no right to it.
            Err(error) if error.code() != Some("NOPERM") => Err(error),
            _ => Ok(Self {
                connection,
                end: Arc::default(),
            }),
        }
    }
}

/// The backend bounds the time of an attempt to connect and of a decision.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

/// Whether RESP2 may be understood. Servers and proxies refuse `HELLO` in many words. Credentials
/// are as wrong in RESP2, and a server that cannot answer at the moment may know RESP3.
fn refuses_hello(error: &RedisError) -> bool {
    const OTHER_REFUSALS: [&str; 5] = ["NOAUTH", "WRONGPASS", "NOPERM", "LOADING", "BUSY"];
    error.kind() == ErrorKind::RESP3NotSupported
        || error
            .code()
            .is_some_and(|code| !OTHER_REFUSALS.contains(&code))
}

/// Whether a connection was open, and has ended.
fn has_ended(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

impl Connection for SharedConnection {
    fn call(&self, command: Command) -> ConnectionFuture<Reply> {
        if self.end.has_come() {
            return Box::pin(std::future::ready(Err(ended())));
        }
        let mut connection = self.connection.clone();
        Box::pin(async move {
            if !command.is_after_asking() {
                let answer = connection.send_packed_command(command.words()).await;
                return answer.map_err(|error| fault(&error)).and_then(reply);
            }
            let mut both = redis::Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command.words().clone());
            let replies = connection.send_packed_commands(&both, 0, 2).await;
            // If `ASKING` was refused, the answer to the command is one more redirection.
            let mut answer = Reply::Nil;
            for value in replies.map_err(|error| fault(&error))? {
                answer = reply(value)?;
            }
            Ok(answer)
        })
    }

    fn on_end(&self, notify: Box<dyn FnOnce() + Send>) {
        self.end.then(notify);
    }
}

fn ended() -> Fault {
    Fault::new(FaultKind::NotSent, "the connection has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_hello_that_is_not_about_credentials_leads_to_resp2() {
        for (line, refuses) in [
            (
                "-ERR unknown command 'HELLO', with args beginning with: '3'",
                true,
            ),
            (
                "-ERR unknown command `HELLO`, with args beginning with: `3`",
                true,
            ),
            ("-ERR unsupported command", true),
            ("-unsupported command", true),
            ("-NOPROTO unsupported protocol version", true),
            ("-WRONGPASS invalid username-password pair", false),
            ("-NOAUTH HELLO must be called with the client", false),
            (
                "-NOPERM this user has no permissions to run the 'hello' command",
                false,
            ),
            ("-BUSY Redis is busy running a script", false),
            ("-LOADING Redis is loading the dataset in memory", false),
        ] {
            let answer = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("RESP");
            let error = answer.extract_error().expect_err(line);
            assert_eq!(refuses_hello(&error), refuses, "{line}");
        }
        let dropped = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(!refuses_hello(&dropped) && has_ended(&dropped));
        assert!(refuses_hello(&RedisError::from((
            ErrorKind::RESP3NotSupported,
            "RESP2"
        ))));
    }
}
