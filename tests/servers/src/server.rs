//! One Redis server.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, RedisResult, Value};

use crate::builder::{self, Builder, Role, START_LIMIT};
use crate::control::{self, PASSWORD, USER};
use crate::port::Port;
use crate::process::Process;
use crate::tls::Tls;

pub(crate) const SENTINEL_FILE: &str = "sentinel.conf";

/// A `redis-server` for one test on 127.0.0.1, without persistence.
///
/// It is killed when this is dropped, also by a panic; and soon after this process has ended in any
/// other way, also by `kill -9` or with the server in a static.
///
/// Methods that query the server panic if it does not answer within 10 seconds, or answers with an
/// error.
#[derive(Debug)]
pub struct Server {
    process: Mutex<Process>,
    builder: Builder,
    tls: Option<Tls>,
    port: Port,
    tls_port: Option<Port>,
}

impl Server {
    /// A server with default options.
    ///
    /// # Panics
    ///
    /// As [`Builder::start`].
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn launch(builder: Builder) -> Self {
        let port = if matches!(builder.role, Role::Node) {
            Port::claim_with_bus()
        } else {
            Port::claim()
        };
        Self::launch_at(builder, port)
    }

    /// Another program, which ignores claims, may have taken the port; then another port is tried.
    pub(crate) fn launch_at(builder: Builder, port: Port) -> Self {
        let (mut server, mut attempt) = (Self::prepare(builder, port), 1);
        while let Err(reason) = server.run() {
            assert!(
                reason.contains("in use") && attempt < 10,
                "redis-server did not start:\n{reason}"
            );
            let port = if matches!(server.builder.role, Role::Node) {
                Port::claim_with_bus()
            } else {
                Port::claim()
            };
            server = Self::prepare(server.builder.clone(), port);
            attempt += 1;
        }
        server
    }

    fn prepare(builder: Builder, port: Port) -> Self {
        let process = Process::new().expect("a temporary folder and a shell");
        let tls = builder.tls.clone();
        if let Some(tls) = &tls {
            tls.write(process.folder())
                .expect("a folder to write certificates to");
        }
        if let Role::Sentinel(lines) = &builder.role {
            fs::write(process.folder().join(SENTINEL_FILE), lines)
                .expect("a folder to write the configuration to");
        }
        let tls_port = tls.is_some().then(Port::claim);
        Self {
            process: Mutex::new(process),
            builder,
            tls,
            port,
            tls_port,
        }
    }

    /// Starts the process and waits for its answer. The error is what the server printed before it
    /// ended.
    fn run(&self) -> Result<(), String> {
        let mut process = self.process();
        let tls = self
            .tls
            .as_ref()
            .zip(self.tls_port.as_ref().map(Port::number));
        let arguments = builder::arguments(&self.builder, self.port.number(), tls);
        process
            .launch(&arguments)
            .expect("a shell to start redis-server with");
        let start = Instant::now();
        loop {
            if process.has_ended() {
                let read =
                    |file| fs::read_to_string(process.folder().join(file)).unwrap_or_default();
                let said = read("output") + &read("log");
                process.kill();
                return Err(said);
            }
            if self.answers(process.id()) {
                return Ok(());
            }
            assert!(
                start.elapsed() < START_LIMIT,
                "redis-server runs, but does not answer"
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether the server that answers on the port is the process started here, not one that bound
    /// the port earlier.
    fn answers(&self, pid: Option<u32>) -> bool {
        let info: RedisResult<String> =
            control::connect(&self.control_url(), Duration::from_secs(1)).and_then(
                |mut connection| control::command(&["INFO", "server"]).query(&mut connection),
            );
        let answering = info
            .ok()
            .and_then(|info| control::field(&info, "process_id")?.parse().ok());
        answering.is_some() && answering == pid
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        // A test that panicked while it held the lock has left the process unchanged.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control_url(&self) -> String {
        match self.builder.role {
            Role::Sentinel(_) => format!("redis://127.0.0.1:{}", self.port()),
            Role::Alone | Role::Node => {
                format!("redis://{USER}:{PASSWORD}@127.0.0.1:{}", self.port())
            }
        }
    }

    /// The port without TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn bus_port(&self) -> u16 {
        self.port.bus()
    }

    /// The URL of the default user, without TLS.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.builder.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port()),
            None => format!("redis://127.0.0.1:{}", self.port()),
        }
    }

    /// The URL of a user of [`Builder::user`], without TLS.
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port())
    }

    /// The URL of the default user with TLS. The certificate is also valid for `127.0.0.1`.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`Builder::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        let port = self
            .tls_port
            .as_ref()
            .expect("a server started with tls()")
            .number();
        match &self.builder.password {
            Some(password) => format!("rediss://:{password}@localhost:{port}"),
            None => format!("rediss://localhost:{port}"),
        }
    }

    pub(crate) fn tls_port(&self) -> Option<u16> {
        self.tls_port.as_ref().map(Port::number)
    }

    /// The certificates.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`Builder::tls`].
    #[must_use]
    pub fn tls(&self) -> &Tls {
        self.tls.as_ref().expect("a server started with tls()")
    }

    /// The process id, until it is killed.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process().id()
    }

    /// Whether it is neither killed nor stopped.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().is_running()
    }

    /// Kills the process as `kill -9` does. Nothing is stored; connections are reset by the system.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills the process, if it still runs, and starts it again on the same port, empty.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&self) {
        self.kill();
        let start = Instant::now();
        // A program that took the port while it was free may release it again.
        while let Err(reason) = self.run() {
            let again = reason.contains("in use") && start.elapsed() < START_LIMIT;
            assert!(again, "redis-server did not start again:\n{reason}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops the process (`SIGSTOP`): connections stay open, and nothing answers until
    /// [`cont`](Self::cont).
    pub fn stop(&self) {
        self.process().stop();
    }

    /// Lets a stopped process continue (`SIGCONT`). It then executes what has arrived in the
    /// meantime.
    pub fn cont(&self) {
        self.process().cont();
    }

    /// The server's answer to a command.
    ///
    /// # Panics
    ///
    /// If that is an error.
    pub fn command(&self, words: &[&str]) -> Value {
        self.query(words)
    }

    /// The server's answer to a command, converted to a type.
    ///
    /// # Panics
    ///
    /// If the answer is an error or of another type.
    pub fn query<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_query(words)
            .unwrap_or_else(|error| panic!("{words:?} on port {}: {error}", self.port()))
    }

    /// The server's answer to a command, or its error.
    ///
    /// # Errors
    ///
    /// The error of the server or of the connection.
    pub fn try_query<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        control::ask(&self.control_url(), words)
    }

    /// A connection with all rights, for many commands in a row.
    ///
    /// # Panics
    ///
    /// If the server does not accept one.
    #[must_use]
    pub fn connection(&self) -> Connection {
        control::open(&self.control_url())
            .unwrap_or_else(|error| panic!("connect to port {}: {error}", self.port()))
    }

    /// Changes an option while the server runs.
    pub fn config_set(&self, name: &str, value: &str) {
        self.command(&["CONFIG", "SET", name, value]);
    }

    /// One value in the answer to `INFO`, such as `info("total_commands_processed")`.
    ///
    /// # Panics
    ///
    /// If there is no such value.
    #[must_use]
    pub fn info(&self, name: &str) -> String {
        let info: String = self.query(&["INFO", "everything"]);
        control::field(&info, name)
            .unwrap_or_else(|| panic!("INFO has no {name}"))
            .to_owned()
    }

    /// Processor time that the server has used so far, in user and system mode, to the microsecond.
    /// The server itself reports it, because the system's own table counts in steps of 10 ms.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let info: String = self.query(&["INFO", "cpu"]);
        let part = |name| {
            control::field(&info, name)
                .and_then(seconds)
                .expect("INFO cpu has both times")
        };
        part("used_cpu_user") + part("used_cpu_sys")
    }

    /// The number of keys.
    #[must_use]
    pub fn dbsize(&self) -> u64 {
        self.query(&["DBSIZE"])
    }

    /// The keys that match a pattern as in `KEYS`, in no order.
    #[must_use]
    pub fn keys(&self, pattern: &str) -> Vec<Vec<u8>> {
        scan(&mut self.connection(), pattern)
    }

    /// The keys that never expire. Bytes that are not UTF-8 are shown as replacement characters.
    #[must_use]
    pub fn keys_without_ttl(&self) -> Vec<String> {
        self.keys_without_ttl_in("*")
    }

    /// The keys that match a pattern and never expire.
    #[must_use]
    pub fn keys_without_ttl_in(&self, pattern: &str) -> Vec<String> {
        let mut connection = self.connection();
        let keys = scan(&mut connection, pattern);
        let mut lasting = Vec::new();
        for some in keys.chunks(1000) {
            let mut pipe = redis::pipe();
            for key in some {
                pipe.cmd("PTTL").arg(key);
            }
            let left: Vec<i64> = pipe.query(&mut connection).expect("PTTL of any key");
            // -1: no expiry; -2: expired meanwhile.
            let without = some.iter().zip(left).filter(|(_, left)| *left == -1);
            lasting.extend(without.map(|(key, _)| String::from_utf8_lossy(key).into_owned()));
        }
        lasting
    }
}

fn scan(connection: &mut Connection, pattern: &str) -> Vec<Vec<u8>> {
    let (mut keys, mut cursor) = (Vec::new(), 0_u64);
    loop {
        let place = cursor.to_string();
        let scan = control::command(&["SCAN", &place, "MATCH", pattern, "COUNT", "1000"]);
        let (next, some): (u64, Vec<Vec<u8>>) =
            scan.query(connection).expect("SCAN of any pattern");
        keys.extend(some);
        cursor = next;
        if cursor == 0 {
            // A scan may name a key twice.
            keys.sort_unstable();
            keys.dedup();
            return keys;
        }
    }
}

/// Seconds with six digits after the point.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, micros) = text.split_once('.')?;
    Some(
        Duration::from_secs(whole.parse().ok()?)
            + Duration::from_micros(format!("{micros:0<6}").parse().ok()?),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_another_server_was_quicker_to_take_is_left_to_it() {
        let first = Server::start();
        let second = Server::launch_at(Builder::default(), Port::without_claim(first.port()));
        assert_ne!(first.port(), second.port());
        second.command(&["SET", "key", "1"]);
        assert_eq!((first.dbsize(), second.dbsize()), (0, 1));
    }

    #[test]
    fn seconds_are_read_to_the_microsecond() {
        assert_eq!(
            seconds("12.000345"),
            Some(Duration::from_micros(12_000_345))
        );
        assert_eq!(seconds("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(seconds("x"), None);
    }
}
