use std::fmt;

/// A command.
///
/// ```
/// use throttle_redis::Command;
///
/// let command = Command::new("GET").arg("key");
/// assert_eq!(command.args().collect::<Vec<_>>(), [b"GET", b"key"]);
/// assert!(!command.is_after_asking());
/// ```
#[derive(Clone)]
pub struct Command {
    words: redis::Cmd,
    after_asking: bool,
}

impl Command {
    /// A command of one word.
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
            after_asking: false,
        }
    }

    /// Adds a word.
    #[must_use]
    pub fn arg(mut self, word: impl AsRef<[u8]>) -> Self {
        self.push(word);
        self
    }

    /// Sets whether the command is sent after `ASKING`.
    #[must_use]
    pub(crate) fn after_asking(mut self, after_asking: bool) -> Self {
        self.after_asking = after_asking;
        self
    }

    /// The same call of a script, with the script's text in place of its digest.
    pub(crate) fn with_source(&self, source: &str) -> Self {
        let eval = Self::new("EVAL")
            .arg(source)
            .after_asking(self.after_asking);
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

    /// Whether `ASKING` is sent before the command, with nothing in between: its slot is moving to
    /// the server.
    #[must_use]
    pub const fn is_after_asking(&self) -> bool {
        self.after_asking
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
            .field("after_asking", &self.after_asking)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_shows_its_name_and_no_other_word() {
        let shown = format!("{:?}", Command::new("GET").arg("throttle{all}p:tada"));
        assert_eq!(
            shown,
            r#"Command { name: Some("GET"), words: 2, after_asking: false }"#
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
        let asking = command.clone().after_asking(true);
        assert!(asking.is_after_asking() && asking.args().eq(command.args()));
    }
}
