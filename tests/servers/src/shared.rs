//! One server for all tests of a binary, whose keys are separated by prefixes.

use std::ops::Deref;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::server::Server;

/// A part of the shared server that no other test touches, as long as all of them keep to their
/// prefix.
///
/// Do not stop, kill, flush or configure the server behind it: other tests use it.
#[derive(Debug)]
pub struct Shared {
    server: &'static Server,
    prefix: String,
}

impl Shared {
    /// A new prefix on the server, which the first call starts.
    ///
    /// # Panics
    ///
    /// As [`Builder::start`](crate::Builder::start).
    #[must_use]
    pub fn new() -> Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            server: SERVER.get_or_init(Server::start),
            prefix: format!("t{}-{number}", process::id()),
        }
    }

    /// The prefix of this test's keys: letters, digits and a dash. Put a separator after it.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The keys under the prefix.
    #[must_use]
    pub fn own_keys(&self) -> Vec<Vec<u8>> {
        self.server.keys(&self.pattern())
    }

    /// The keys under the prefix that never expire.
    #[must_use]
    pub fn own_keys_without_ttl(&self) -> Vec<String> {
        self.server.keys_without_ttl_in(&self.pattern())
    }

    /// No other prefix begins with this one and a character that is not a digit; and a key may have
    /// its tag around the prefix.
    fn pattern(&self) -> String {
        format!("*{}[^0-9]*", self.prefix)
    }
}

impl Drop for Shared {
    /// Deletes the keys under the prefix. A test that lists its own keys walks through all keys of
    /// the server.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let mut connection = self.server.connection();
            for some in self.own_keys().chunks(1000) {
                redis::cmd("UNLINK")
                    .arg(some)
                    .exec(&mut connection)
                    .expect("UNLINK of any key");
            }
        }
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Shared {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server
    }
}
