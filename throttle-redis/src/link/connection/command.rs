use std::fmt;

/// A command, and the server that it is for.
///
/// ```
/// use throttle_redis::{Command, Route};
///
/// let command = Command::new("GET").arg("key").to(Route::Slot(7));
/// assert_eq!(command.args().collect::<Vec<_>>(), [b"GET", b"key"]);
/// assert_eq!(command.route(), &Route::Slot(7));
/// ```
#[derive(Clone)]
pub struct Command {
    words: redis::Cmd,
    route: Route,
}

/// Which server of a cluster a command is for.
///
/// ```
/// use throttle_redis::{Command, Route};
///
/// assert_eq!(Command::new("PING").route(), &Route::Any);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Any server that accepts writes.
    Any,
    /// The primary of a hash slot.
    Slot(u16),
    /// The server at an address that a redirection or a list of nodes has named.
    Address {
        /// Name or address.
        host: String,
        /// TCP port.
        port: u16,
        /// Whether the command is to be preceded by `ASKING`, with nothing in between.
        asking: bool,
    },
}

impl Command {
    /// A command of one word, for any server.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::sized(name, 8, 128)
    }

    /// The same, with room for this many words, of this many bytes in all.
    pub(crate) fn sized(name: &str, words: usize, bytes: usize) -> Self {
        let mut words = redis::Cmd::with_capacity(words, bytes);
        words.arg(name);
        Self {
            words,
            route: Route::Any,
        }
    }

    /// Adds a word.
    #[must_use]
    pub fn arg(mut self, word: impl AsRef<[u8]>) -> Self {
        self.push(word);
        self
    }

    /// Sets the server that the command is for.
    #[must_use]
    pub fn to(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// The same call of a script, with the script's text in place of its digest.
    pub(crate) fn with_source(&self, source: &str) -> Self {
        let eval = Self::new("EVAL").arg(source).to(self.route.clone());
        self.args().skip(2).fold(eval, Self::arg)
    }

    pub(crate) fn push(&mut self, word: impl AsRef<[u8]>) {
        self.words.arg(word.as_ref());
    }

    pub(crate) fn push_number(&mut self, number: usize) {
        self.words.arg(number);
    }

    /// The words, the command's name first.
    pub fn args(&self) -> impl Iterator<Item = &[u8]> {
        self.words.args_iter().map(|word| match word {
            redis::Arg::Simple(bytes) => bytes,
            // Cursors are never put into commands here; a client that did not know would send a 0.
            _ => b"0",
        })
    }

    /// The server that the command is for.
    #[must_use]
    pub const fn route(&self) -> &Route {
        &self.route
    }

    pub(super) fn words(&self) -> &redis::Cmd {
        &self.words
    }
}

impl fmt::Debug for Command {
    /// Shows the name and the number of words. The other words contain keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.args().next().map(String::from_utf8_lossy);
        let mut shown = f.debug_struct("Command");
        shown
            .field("name", &name)
            .field("words", &self.args().count())
            .field("route", &self.route)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_shows_its_name_and_no_other_word() {
        let shown = format!(
            "{:?}",
            Command::new("GET")
                .arg("throttle{all}p:tada")
                .to(Route::Slot(7))
        );
        assert_eq!(
            shown,
            r#"Command { name: Some("GET"), words: 2, route: Slot(7) }"#
        );
    }

    #[test]
    fn words_stand_in_the_order_in_which_they_were_added() {
        let mut command = Command::new("EVALSHA").arg("sha");
        command.push_number(12);
        command.push(b"a\xff");
        let command = command.arg("");
        assert_eq!(
            command.args().collect::<Vec<_>>(),
            [&b"EVALSHA"[..], b"sha", b"12", b"a\xff", b""]
        );
        assert_eq!(command.route(), &Route::Any);
        let asking = Route::Address {
            host: "host".to_owned(),
            port: 1,
            asking: true,
        };
        assert_eq!(
            command
                .clone()
                .to(Route::Slot(1))
                .to(asking.clone())
                .route(),
            &asking
        );
        assert!(
            command
                .words()
                .args_iter()
                .eq(command.clone().to(asking).words().args_iter())
        );
    }
}
