//! How the methods here speak with a server: a user of their own, and a fresh connection for each question.
//!
//! The user is there so that a test may lock all others out. A connection kept open would be one more in every count of
//! clients, and would have to be renewed after each fault.

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

/// One line `name:value` of what `INFO` and `CLUSTER INFO` answer.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
