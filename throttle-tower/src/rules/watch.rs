//! Reads a file again whenever it changes.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use super::handle::Handle;
use super::{Rules, file};

/// Watches the file of a [`Handle`] until it is dropped.
#[must_use = "the file is watched until this is dropped"]
pub struct Watch(Sender<Signal>);

enum Signal {
    /// Something may have changed.
    Look,
    Stop,
}

/// Writes that follow each other within this time count as one.
const QUIET: Duration = Duration::from_millis(200);
/// A file that is written to all the time is read at last.
const LONGEST_WRITE: Duration = Duration::from_secs(5);
/// What is wrong with a file is reported after this time, if it is still wrong.
const SECOND_TRY: Duration = Duration::from_secs(1);
/// Where the system says nothing of changes, as in some network and overlay file systems.
const POLL: Duration = Duration::from_secs(30);
/// Where the system cannot watch at all.
const POLL_ONLY: Duration = Duration::from_secs(2);

impl Handle {
    /// Reads the file again whenever it changes, as [`reload`](Self::reload) does, until the result is dropped.
    ///
    /// A thread of its own watches the folder of the file, so a file that is replaced by renaming is noticed, and one
    /// behind a symbolic link that is exchanged, as Kubernetes does with a `ConfigMap`. A change is read once nothing
    /// has been written for 200 ms. A file with mistakes is read again after a second, since it may have been in the
    /// middle of being written; only then the mistakes are reported, by [`status`](Self::status) and
    /// [`on_reload`](Self::on_reload), once. The file is compared by what it says, and looked at every 30 seconds in
    /// any case, which also finds what happens to a link further up in its path; every 2 seconds where the system has
    /// no watches left.
    ///
    /// A file that stops in the middle for longer than 200 ms while it is written may be accepted with fewer limits
    /// than it gets. Replace it by renaming another to its name, and let it name its limits in `compose`.
    ///
    /// # Errors
    ///
    /// If the rules were read from a text, or if no thread can be started.
    pub fn watch(&self) -> io::Result<Watch> {
        let Some(path) = self.path() else {
            let rule = "these rules were read from a text, so there is no file to watch; read them with from_path";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, rule));
        };
        let (sender, signals) = mpsc::channel();
        let folders = Folders::new(path.clone(), sender.clone());
        let watching =
            Watching { handle: self.clone(), seen: Seen::Text(self.rules().text.to_string()), path, folders };
        thread::Builder::new().name("throttle-rules".to_owned()).spawn(move || watching.run(&signals))?;
        Ok(Watch(sender))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // If the thread has ended by itself, it receives nothing any more.
        let _ = self.0.send(Signal::Stop);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

struct Watching {
    handle: Handle,
    path: PathBuf,
    /// What the file said when it was read last.
    seen: Seen,
    folders: Folders,
}

/// What there was to read.
#[derive(PartialEq, Eq)]
enum Seen {
    Text(String),
    /// The file could not be read, for this reason.
    Nothing(String),
}

impl Watching {
    fn run(mut self, signals: &Receiver<Signal>) {
        // The first look finds what has changed before the folder was watched.
        while !self.look(signals) && !self.wait(signals) {
            self.folders.renew();
        }
    }

    /// Waits until the file may have changed. Whether the watch has ended meanwhile.
    fn wait(&self, signals: &Receiver<Signal>) -> bool {
        match signals.recv_timeout(self.folders.longest_pause()) {
            Ok(Signal::Look) => wait_for_quiet(signals, QUIET, LONGEST_WRITE),
            Err(RecvTimeoutError::Timeout) => false,
            Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => true,
        }
    }

    /// Puts the file in force if it says something new. Whether the watch has ended meanwhile.
    fn look(&mut self, signals: &Receiver<Signal>) -> bool {
        if self.read() == self.seen {
            return false;
        }
        if !self.is_right() {
            match signals.recv_timeout(SECOND_TRY) {
                Ok(Signal::Look) if wait_for_quiet(signals, QUIET, LONGEST_WRITE) => return true,
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
                Ok(Signal::Look) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.seen = self.read();
        // The hooks and the status tell what came of it.
        let _ = self.handle.reload();
        false
    }

    fn read(&self) -> Seen {
        let name = self.path.display().to_string().into();
        match file::read(&self.path, &name) {
            Ok(text) => Seen::Text(text),
            Err(error) => Seen::Nothing(error.to_string()),
        }
    }

    fn is_right(&self) -> bool {
        Rules::from_path(&self.path, self.handle.rules().registry).is_ok()
    }
}

/// Waits until no change has come for `quiet`. The first change after `longest` ends the wait, too. Returns whether the
/// watch was stopped meanwhile.
fn wait_for_quiet(signals: &Receiver<Signal>, quiet: Duration, longest: Duration) -> bool {
    let begun = Instant::now();
    loop {
        match signals.recv_timeout(quiet) {
            Ok(Signal::Look) if begun.elapsed() < longest => {}
            Ok(Signal::Look) | Err(RecvTimeoutError::Timeout) => return false,
            Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}

/// The folders in which the file can be exchanged: the one that the program names, and the one that it is a link to.
struct Folders {
    path: PathBuf,
    /// `None` if the system has no watches left.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
}

impl Folders {
    fn new(path: PathBuf, signals: Sender<Signal>) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, may_change) {
                // If the watch has ended, its thread receives nothing any more.
                let _ = signals.send(Signal::Look);
            }
        });
        let mut folders = Self { path, watcher: watcher.ok(), watched: BTreeSet::new() };
        folders.renew();
        folders
    }

    /// Watches the folders as they are now: a link may lead elsewhere.
    fn renew(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let folder = |path: &Path| match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Some(PathBuf::from(".")),
            folder => folder.map(Path::to_owned),
        };
        let linked = self.path.canonicalize().ok();
        let now: BTreeSet<_> = [folder(&self.path), linked.as_deref().and_then(folder)].into_iter().flatten().collect();
        for gone in self.watched.difference(&now) {
            // It may be gone, and its watch with it.
            let _ = watcher.unwatch(gone);
        }
        self.watched.retain(|watched| now.contains(watched));
        for folder in now {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => self.watched.insert(folder),
                Err(_) => self.watched.remove(&folder),
            };
        }
    }

    fn longest_pause(&self) -> Duration {
        if self.watched.is_empty() { POLL_ONLY } else { POLL }
    }
}

/// Whether the file may say something else after an event. To read it is an event, too.
fn may_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use notify::event::{CreateKind, Flag, ModifyKind, RemoveKind, RenameMode};
    use throttle_core::MemoryBackend;

    use super::*;
    use crate::rules::Registry;
    use crate::rules::tests::Folder;

    const FORMER: &str = "version = 1\nlimit = []";

    /// What the thread of a watch works with, for a file with these rules; its handle, and the layer to be kept alive.
    fn watching(path: &Path) -> (Watching, Handle, impl Sized + use<>) {
        fs::write(path, FORMER).unwrap();
        let rules = Rules::from_path(path, Registry::new()).unwrap();
        let (layer, handle) = rules.layer(MemoryBackend::new()).unwrap();
        let (seen, folders) = (Seen::Text(FORMER.to_owned()), unwatched(path));
        (Watching { handle: handle.clone(), path: path.to_owned(), seen, folders }, handle, layer)
    }

    /// As where the system has no watches left.
    fn unwatched(path: &Path) -> Folders {
        Folders { path: path.to_owned(), watcher: None, watched: BTreeSet::new() }
    }

    /// A file with mistakes may be half written, so it is reported only after a second look. A correct file is put in
    /// force at once.
    #[test]
    fn file_with_mistakes_is_left_alone_if_the_watch_ends_before_its_second_look() {
        let folder = Folder::new("second-look");
        let path = folder.file();
        for (text, is_over, revision) in
            [("version = 1\nlimit = [", true, 1), ("version = 1\nlimit = []\nlayer.max-waiting = 7", false, 2)]
        {
            let (mut watching, handle, _layer) = watching(&path);
            let (sender, signals) = mpsc::channel();
            sender.send(Signal::Stop).unwrap();
            assert!(!watching.look(&signals), "the text has not changed");
            fs::write(&path, text).unwrap();
            assert_eq!(watching.look(&signals), is_over, "{text}");
            assert_eq!((handle.status().revision, handle.status().failing_since), (revision, None), "{text}");
            assert_eq!(signals.try_recv().is_ok(), !is_over, "signals are read only before a second look");
        }
    }

    /// The hook stands for programs that write the file while the watch works, so that nothing depends on the time.
    #[test]
    fn writes_that_follow_each_other_are_read_once_and_none_is_after_the_end_of_the_watch() {
        let folder = Folder::new("quiet");
        let (watching, handle, _layer) = watching(&folder.file());
        let (sender, signals) = mpsc::channel();
        let path = folder.file();
        let write = move |most: u64| fs::write(&path, format!("{FORMER}\nlayer.max-waiting = {most}")).unwrap();
        write(1);
        handle.on_reload(move |reloaded| {
            let (writes, ends) = match reloaded.unwrap().revision {
                2 => (3, false),
                3 => (1, true),
                _ => (0, true),
            };
            (0..writes).for_each(|most| {
                write(most + 2);
                sender.send(Signal::Look).unwrap();
            });
            if ends {
                sender.send(Signal::Stop).unwrap();
            }
        });
        watching.run(&signals);
        assert_eq!(handle.status().revision, 3);
        assert_eq!(signals.try_iter().count(), 0, "all were read before");
    }

    /// The file may be half written.
    #[test]
    fn mistakes_are_not_reported_if_the_watch_ends_meanwhile() {
        let folder = Folder::new("ended");
        let path = folder.file();
        let (watching, handle, _layer) = watching(&path);
        let (sender, signals) = mpsc::channel();
        sender.send(Signal::Stop).unwrap();
        // So that the watch ends in any case.
        handle.on_reload(move |_| sender.send(Signal::Stop).unwrap());
        fs::write(&path, "version = 1\nlimit = [").unwrap();
        watching.run(&signals);
        assert_eq!(handle.status().failing_since, None);
    }

    #[test]
    fn status_says_why_the_file_cannot_be_read_now() {
        let folder = Folder::new("unreadable");
        let path = folder.file();
        let (mut watching, handle, _layer) = watching(&path);
        let (_sender, signals) = mpsc::channel();
        let mut look = || {
            assert!(!watching.look(&signals));
            handle.status().last_error.unwrap().to_string()
        };
        fs::remove_file(&path).unwrap();
        let missing = look();
        fs::create_dir(&path).unwrap();
        let folder_in_its_place = look();
        assert_ne!(missing, folder_in_its_place);
    }

    #[test]
    fn file_that_is_written_all_the_time_is_read_at_last() {
        let (sender, signals) = mpsc::channel();
        (0..3).for_each(|_| sender.send(Signal::Look).unwrap());
        assert!(!wait_for_quiet(&signals, QUIET, Duration::ZERO));
        assert_eq!(signals.try_iter().count(), 2, "the longest time was over after the first change");
        sender.send(Signal::Look).unwrap();
        sender.send(Signal::Stop).unwrap();
        assert!(wait_for_quiet(&signals, QUIET, LONGEST_WRITE), "behind a change, too");
        drop(sender);
        assert!(wait_for_quiet(&signals, QUIET, LONGEST_WRITE), "all senders are gone");
    }

    #[cfg(unix)]
    #[test]
    fn both_folders_of_a_link_are_watched_from_the_start() {
        let (folder, elsewhere) = (Folder::new("here"), Folder::new("there"));
        let (path, target) = (folder.file(), elsewhere.file());
        fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let mut folders = Folders::new(path.clone(), mpsc::channel().0);
        assert!(folders.watcher.is_some(), "the system has no watches left: raise fs.inotify.max_user_instances");
        assert_eq!(folders.watched, BTreeSet::from([folder.0.clone(), elsewhere.0.clone()]));
        assert_eq!(folders.longest_pause(), POLL);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        folders.renew();
        assert_eq!(folders.watched, BTreeSet::from([folder.0.clone()]), "the file is no link any more");
    }

    #[test]
    fn file_in_a_folder_that_cannot_be_watched_is_looked_at_more_often() {
        let folder = Folder::new("gone");
        let folders = Folders::new(folder.0.join("gone/throttle.toml"), mpsc::channel().0);
        assert_eq!((folders.watched.len(), folders.longest_pause()), (0, POLL_ONLY));
        let mut none_left = unwatched(&folder.file());
        none_left.renew();
        assert_eq!(
            (none_left.watched.len(), none_left.longest_pause()),
            (0, POLL_ONLY),
            "the system has no watches left"
        );
    }

    #[test]
    fn only_what_may_change_a_file_is_a_reason_to_look() {
        let is_reason = |kind| may_change(&Event::new(kind));
        for kind in [
            EventKind::Any,
            EventKind::Other,
            EventKind::Create(CreateKind::File),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            EventKind::Remove(RemoveKind::File),
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
        ] {
            assert!(is_reason(kind), "{kind:?}");
        }
        for kind in [
            AccessKind::Any,
            AccessKind::Read,
            AccessKind::Open(AccessMode::Write),
            AccessKind::Close(AccessMode::Read),
        ] {
            assert!(!is_reason(EventKind::Access(kind)), "{kind:?}");
        }
        assert!(may_change(&Event::new(EventKind::Other).set_flag(Flag::Rescan)), "events were lost");
    }

    #[test]
    fn debug_output_of_a_watch_is_its_name() {
        assert_eq!(format!("{:?}", Watch(mpsc::channel().0)), "Watch");
    }
}
