//! The connection of these methods to a server: a user of their own, and a fresh connection for
//! each question.
//!
//! The separate user allows a test to lock out all others. A connection that stayed open would
//! appear in every count of clients, and would have to be reopened after each fault.

use std::time::Duration;

use redis::{Client, Cmd, Connection, FromRedisValue, RedisResult};

pub(crate) const USER: &str = "test-control";
pub(crate) const PASSWORD: &str = "of-the-tests";

/// No question here takes long; a server that hangs must not hang the test.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn connect(url: &str, patience: Duration) -> RedisResult<Connection> {
    let connection = Client::open(url)?.get_connection_with_timeout(patience)?;
    connection.set_read_timeout(Some(patience))?;
    connection.set_write_timeout(Some(patience))?;
    Ok(connection)
}

pub(crate) fn ask<T: FromRedisValue>(url: &str, words: &[&str]) -> RedisResult<T> {
    command(words).query(&mut connect(url, PATIENCE)?)
}

pub(crate) fn open(url: &str) -> RedisResult<Connection> {
    connect(url, PATIENCE)
}

pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

/// The value of one line `name:value` in the answer to `INFO` or `CLUSTER INFO`.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}
