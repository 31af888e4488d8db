//! A small shell beside each server that outlives the test process by a moment, and cleans up after
//! it.
//!
//! A destructor does not run when a test process is killed or exits with its statics. What always
//! happens is that its end of a pipe is closed. (Linux could also signal a child when its parent
//! dies; but the parent is then the thread that spawned the child, and every test has a thread of
//! its own.)

use std::env;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, mem};

/// Reads the number of the process to end, if any. Signals to the terminal's group must not stop
/// this shell before its work is done. A process that is being killed may still write a file while
/// its directory is removed.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
pid=
while read -r word; do pid=$word; done
case $pid in '' | none) ;; *) kill -9 "$pid" ;; esac
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"#;

/// A temporary directory and at most one process. Both are removed soon after this is dropped or
/// this process has ended.
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    folder: PathBuf,
}

impl Keeper {
    pub(crate) fn new() -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("throttle-redis-{}-{number}", process::id()));
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "keeper"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        // Files that a former process of the same number left are not this server's data.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        Ok(Self { shell, folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// From now on, this process is ended at the end.
    pub(crate) fn watch(&mut self, pid: u32) -> io::Result<()> {
        self.say(&pid.to_string())
    }

    /// The process has ended; its number may soon belong to another one.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.say("none")
    }

    fn say(&mut self, word: &str) -> io::Result<()> {
        let pipe = self
            .shell
            .stdin
            .as_mut()
            .expect("piped above, taken on drop only");
        pipe.write_all(format!("{word}\n").as_bytes())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        mem::drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
