//! One server process: started, stopped, killed, and started again in the same directory.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::keeper::Keeper;
use crate::{binary, signal};

/// The shell replaces itself with the server, under the same process id, when this process sends a
/// line. Until then the shell ends with this process, so no server ever runs without a keeper that
/// knows it.
const GATE: &str = r#"read -r _ && exec "$@" </dev/null"#;

#[derive(Debug)]
pub(crate) struct Process {
    keeper: Keeper,
    child: Option<Child>,
    stopped: bool,
}

impl Process {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            keeper: Keeper::new()?,
            child: None,
            stopped: false,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.keeper.folder()
    }

    pub(crate) fn launch(&mut self, arguments: &[String]) -> io::Result<()> {
        self.kill();
        let output = File::create(self.folder().join("output"))?;
        let mut child = Command::new("sh")
            .args(["-c", GATE, "gate"])
            .arg(binary::redis_server())
            .args(arguments)
            .current_dir(self.folder())
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let mut gate = child.stdin.take().expect("piped above");
        let pid = child.id();
        self.child = Some(child);
        self.stopped = false;
        self.keeper.watch(pid)?;
        gate.write_all(b"go\n")
    }

    /// Its process id, until it is killed.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it is neither killed nor stopped.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some() && !self.stopped
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Ends it at once, even if it is stopped, and returns when it has ended.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            // If the keeper has ended, there is nothing to update.
            let _ = self.keeper.forget();
        }
    }

    pub(crate) fn stop(&mut self) {
        signal::stop(
            self.id()
                .expect("a server that was killed cannot be stopped"),
        );
        self.stopped = true;
    }

    pub(crate) fn cont(&mut self) {
        signal::cont(self.id().expect("a server that was killed cannot go on"));
        self.stopped = false;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
