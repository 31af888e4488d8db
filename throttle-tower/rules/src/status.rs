use std::time::SystemTime;

use super::problem::RulesError;

/// Which file is in force, and whether the last attempt to read it again has failed.
///
/// ```
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{Registry, Rules};
///
/// let rules = Rules::from_str("throttle.toml", "version = 1\nlimit = []", Registry::new())?;
/// let (_throttle, handle) = rules.layer(MemoryBackend::new())?;
/// assert!(handle.replace("version = 2\nlimit = []").is_err());
/// let status = handle.status();
/// assert_eq!((status.revision, status.failing_since.is_some()), (1, true));
/// assert!(status.last_error.unwrap().to_string().starts_with("throttle.toml:1:11: version is 2"));
/// # Ok::<(), throttle_rules::RulesError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The file's name.
    pub file: String,
    /// 1 for the first file that was in force, one more with each that replaced it.
    pub revision: u64,
    /// A digest of the file that is in force, 32 hexadecimal digits: the same in each process that
    /// has the same file.
    pub hash: String,
    /// When it was put in force.
    pub loaded_at: SystemTime,
    /// Since when attempts to replace it fail; `None` if the last one has not failed.
    pub failing_since: Option<SystemTime>,
    /// Why the last attempt has failed; `None` if it has not.
    pub last_error: Option<RulesError>,
}
