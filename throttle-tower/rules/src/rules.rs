//! The limits of a file, once they are read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use throttle_tower::client_ip::ClientIp;
use throttle_tower::limit::LimitTree;

use super::document::{self, Document};
use super::entry::Entry;
use super::file;
use super::problem::RulesError;
use super::registry::Registry;

/// Limits that were read from a file: see the [crate].
///
/// ```
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{Registry, Rules};
///
/// let text = "version = 1\n[[limit]]\nname = \"all\"\nby = \"constant\"\ngcra = { rate = \"10/second\" }";
/// let rules = Rules::from_str("throttle.toml", text, Registry::new())?;
/// assert!(rules.layer(MemoryBackend::new()).is_ok());
/// # Ok::<(), throttle_rules::RulesError>(())
/// ```
#[derive(Clone)]
pub struct Rules {
    pub(super) file: Arc<str>,
    pub(super) path: Option<PathBuf>,
    pub(super) text: Arc<str>,
    pub(super) registry: Registry,
    pub(super) document: Document,
}

impl Rules {
    /// Reads a file. It blocks the thread; asynchronous code calls it in
    /// `tokio::task::spawn_blocking`.
    ///
    /// A file that is read while it is written may be accepted with fewer limits than it gets.
    /// Replace the file by renaming another to its name, and let the file name its limits in
    /// `compose`: a limit that is not there yet is then a problem.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is no regular file ([`source`](std::error::Error::source) is
    /// the I/O error), is longer than 1 MiB, or if anything is wrong with what it says.
    pub fn from_path(path: impl AsRef<Path>, registry: Registry) -> Result<Self, RulesError> {
        let path = path.as_ref();
        let file: Arc<str> = path.display().to_string().into();
        let text = file::read(path, &file)?;
        Self::read(file, Some(path.to_owned()), text.into(), registry)
    }

    /// Reads a text. Errors call it by the name of the file.
    ///
    /// # Errors
    ///
    /// If the text is longer than 1 MiB, or if anything is wrong with what it says.
    pub fn from_str(file: &str, text: &str, registry: Registry) -> Result<Self, RulesError> {
        Self::read(file.into(), None, text.into(), registry)
    }

    pub(super) fn read(
        file: Arc<str>,
        path: Option<PathBuf>,
        text: Arc<str>,
        registry: Registry,
    ) -> Result<Self, RulesError> {
        let document = document::read(&file, &text, &registry)?;
        Ok(Self {
            file,
            path,
            text,
            registry,
            document,
        })
    }

    /// The limits as the file composes them, for a program that composes them further. They have
    /// the file's defaults, and nothing that the file says of the layer: neither its `[layer]` nor
    /// its `when`.
    pub fn tree(&self) -> LimitTree {
        self.document.tree.clone()
    }

    /// The limit of that name.
    pub(super) fn limit(&self, name: &str) -> Option<&Entry> {
        let mut limits = self.document.limits.iter();
        limits.find(|limit| limit.name == name)
    }

    /// Where the client's address comes from, as the file says. A program can log its
    /// [broad networks](ClientIp::broad_networks), and find the address for its own purposes.
    ///
    /// ```
    /// use throttle_rules::{Registry, Rules};
    ///
    /// let text = "version = 1\nlimit = []\n[client-ip]\nsource = \"x-forwarded-for\"\ntrusted = [\"10.0.0.0/8\"]";
    /// let rules = Rules::from_str("throttle.toml", text, Registry::new())?;
    /// assert_eq!(rules.client_ip().broad_networks().count(), 1);
    /// # Ok::<(), throttle_rules::RulesError>(())
    /// ```
    pub fn client_ip(&self) -> &ClientIp {
        &self.document.client_ip
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<&str> = self
            .document
            .limits
            .iter()
            .map(|limit| &*limit.name)
            .collect();
        f.debug_struct("Rules")
            .field("file", &self.file)
            .field("limits", &limits)
            .finish_non_exhaustive()
    }
}
