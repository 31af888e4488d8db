//! Snapshots in a file: written aside and renamed, now and then and at the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::RestoreError;
use crate::memory::{MemoryBackend, MemoryBuilder};
use crate::time::Clock;

/// Held while a file is written: two saves would write the same one.
static SAVING: Mutex<()> = Mutex::new(());

/// A file that only this user may read, because it has the secret under which keys are hashed.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

impl<C: Clock> MemoryBackend<C> {
    /// Writes a [snapshot](Self::snapshot) to a file: to one beside it with the ending `.new`,
    /// which then takes its place. So there is a whole snapshot at any time, as long as no other
    /// process saves to the same file. Only this user may read it. Returns the number of keys,
    /// overflow buckets included. In a container, mount the folder and not the file: a file that is
    /// a mount itself cannot be replaced.
    ///
    /// # Errors
    ///
    /// If a file cannot be written, renamed or flushed to the disk. The former snapshot stays.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        let path = path.as_ref();
        let mut aside = path.as_os_str().to_owned();
        aside.push(".new");
        let _alone = SAVING.lock();
        let mut file = BufWriter::with_capacity(1 << 16, private().open(&aside)?);
        let keys = self.snapshot(&mut file)?;
        file.get_ref().sync_all()?;
        fs::rename(&aside, path)?;
        Ok(keys)
    }

    /// [Saves](Self::save) every `period`, and once more when the returned [`Saver`] is dropped, on
    /// a thread of its own. `report` gets the outcome of each save: log its errors.
    ///
    /// After a crash, what was admitted since the last save is forgotten, so a client gets at most
    /// that much more.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_core::{Gcra, Limiter, MemoryBackend, Policy, PolicySet, Rate};
    ///
    /// # let folder = std::env::temp_dir().join(format!("throttle-snapshot-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let path = folder.join("limits.snapshot");
    /// let limits = || PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(2)))?);
    ///
    /// let backend = MemoryBackend::builder().restore_file(&path)?;
    /// let saver = backend.save_every(&path, Duration::from_secs(10), |saved| {
    ///     saved
    ///         .inspect_err(|error| eprintln!("limits are not saved: {error}"))
    ///         .ok();
    /// });
    /// let limiter = Limiter::new(backend, limits()?)?;
    /// assert!(limiter.check("ada", 2).is_admitted());
    /// drop((limiter, saver)); // The process ends.
    ///
    /// let limiter = Limiter::new(MemoryBackend::builder().restore_file(&path)?, limits()?)?;
    /// assert!(!limiter.check("ada", 1).is_admitted());
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the operating system starts no thread.
    #[must_use = "dropping the saver saves once and ends its thread"]
    pub fn save_every(
        &self,
        path: impl Into<PathBuf>,
        period: Duration,
        mut report: impl FnMut(io::Result<u64>) + Send + 'static,
    ) -> Saver
    where
        C: Clone,
    {
        let (backend, path) = (self.clone(), path.into());
        let (ends, ended) = channel::<()>();
        let mut save = move || {
            let saved = backend.save(&path);
            // A report that panics must not end the saving.
            _ = catch_unwind(AssertUnwindSafe(|| report(saved)));
        };
        let work = move || {
            while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                save();
            }
            save();
        };
        let thread = thread::Builder::new()
            .name("throttle-saver".to_owned())
            .spawn(work)
            .expect("a thread starts");
        Saver {
            ends: Some(ends),
            thread: Some(thread),
        }
    }
}

impl<C: Clock> MemoryBuilder<C> {
    /// [Restores](Self::restore) a snapshot from a file. Without the file, all keys are unused.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore), and if the file cannot be read.
    pub fn restore_file(self, path: impl AsRef<Path>) -> Result<MemoryBackend<C>, RestoreError> {
        match File::open(path) {
            Ok(mut file) => self.restore(&mut file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(self.build()),
            Err(error) => Err(error.into()),
        }
    }

    /// Builds a backend of a snapshot: every key has used what it had used. Parameters that have
    /// changed since then decide as they do about any state that others wrote. A snapshot from the
    /// future, because the clock was stepped back, counts as taken now.
    ///
    /// # Errors
    ///
    /// If the reader fails, the bytes are no whole snapshot, or it does not fit.
    /// [`build`](Self::build) begins with unused keys instead, if that is what you want then.
    pub fn restore(self, reader: &mut impl Read) -> Result<MemoryBackend<C>, RestoreError> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        self.of_snapshot(&bytes)
    }
}

/// Saves a backend now and then, and once more when it is dropped: keep it until the server has
/// shut down. See [`MemoryBackend::save_every`] for an example.
#[derive(Debug)]
pub struct Saver {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Saver {
    /// Waits until the last snapshot is written.
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}
