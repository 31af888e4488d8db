//! Reads a file again whenever it changes.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::file;
use super::handle::Handle;

/// Watches the file of a [`Handle`] until it is dropped.
///
/// ```
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{Registry, Rules};
///
/// # let name = format!("throttle-watch-{}.toml", std::process::id());
/// # let path = std::env::temp_dir().join(name);
/// std::fs::write(&path, "version = 1\nlimit = []")?;
/// let rules = Rules::from_path(&path, Registry::new())?;
/// let (_throttle, handle) = rules.layer(MemoryBackend::new())?;
/// let watch = handle.watch()?; // keep it as long as the server runs
/// assert_eq!(handle.status().revision, 1);
/// drop(watch);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the file is watched until this is dropped"]
pub struct Watch {
    /// The thread ends when it is gone.
    _running: Sender<()>,
}

/// How often the file is looked at. Unlike what a system tells of changes, this works in every file
/// system, behind every link, and however many files are watched.
const PERIOD: Duration = Duration::from_millis(500);

impl Handle {
    /// Reads the file again whenever it changes, as [`reload`](Self::reload) does, until the result
    /// is dropped.
    ///
    /// A thread of its own looks at the file twice a second, and compares what it says. A change is
    /// read once two looks in a row have found the same, so within a second or so. Thus it also
    /// finds a file that is replaced by renaming, and one behind a symbolic link that is exchanged,
    /// as Kubernetes does with a `ConfigMap`. What is wrong with a file is reported once, by
    /// [`status`](Self::status) and [`on_reload`](Self::on_reload).
    ///
    /// A file that stops in the middle for longer than half a second while it is written may be
    /// accepted with fewer limits than it gets. Replace it by renaming another to its name, and let
    /// it name its limits in `compose`.
    ///
    /// # Errors
    ///
    /// If the rules were read from a text, or if no thread can be started.
    pub fn watch(&self) -> io::Result<Watch> {
        let Some(path) = self.path() else {
            let rule = "these rules were read from a text, so there is no file to watch; read \
                them with from_path";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, rule));
        };
        let (handle, rules) = (self.clone(), self.rules());
        let mut looks = Looks::after(Ok(rules.text.to_string()));
        let (sender, running) = mpsc::channel();
        thread::Builder::new()
            .name("throttle-rules".to_owned())
            .spawn(move || {
                while running.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    let found = file::read(&path, &rules.file).map_err(|error| error.to_string());
                    if looks.find_news(found.clone()) {
                        // The hooks and the status tell what came of it. Another read might find
                        // another text.
                        let _ = match found {
                            Ok(text) => handle.attempt(|_| Ok(text)),
                            Err(_) => handle.reload(),
                        };
                    }
                }
            })?;
        Ok(Watch { _running: sender })
    }
}

/// What looks have found: the text of the file, or why it cannot be read.
struct Looks<T> {
    last: T,
    /// What was read last.
    known: T,
}

impl<T: Clone + PartialEq> Looks<T> {
    fn after(known: T) -> Self {
        Self {
            last: known.clone(),
            known,
        }
    }

    /// Whether a look finds something new that the look before has found, too. What it finds once
    /// may be half written.
    fn find_news(&mut self, found: T) -> bool {
        let is_new = found == self.last && found != self.known;
        self.last = found;
        if is_new {
            self.known.clone_from(&self.last);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_once_two_looks_find_the_same_that_is_new() {
        let mut looks = Looks::after(Ok("1"));
        for (found, is_read) in [
            (Ok("1"), false),
            (Ok("2"), false),
            (Ok("2"), true),
            (Ok("2"), false),
            (Ok("half"), false),
            (Ok("whole"), false),
            (Ok("whole"), true),
            (Err("missing"), false),
            (Ok("whole"), false),
            (Ok("whole"), false),
            (Err("missing"), false),
            (Err("missing"), true),
            (Err("missing"), false),
            (Err("a folder"), false),
            (Err("a folder"), true),
            (Ok("whole"), false),
            (Ok("whole"), true),
        ] {
            assert_eq!(looks.find_news(found), is_read, "{found:?}");
        }
    }
}
