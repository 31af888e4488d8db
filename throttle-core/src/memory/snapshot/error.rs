use std::error::Error;
use std::{fmt, io};

use crate::error::ConfigError;

/// Why a snapshot was not restored. Nothing is restored in part.
///
/// ```
/// use throttle_core::MemoryBackend;
/// use throttle_core::snapshot::RestoreError;
///
/// let error = MemoryBackend::builder().restore(&mut &b"hello"[..]).unwrap_err();
/// assert!(matches!(error, RestoreError::NotASnapshot));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RestoreError {
    /// The file could not be read.
    Io(io::Error),
    /// The bytes do not begin as a snapshot of this version does.
    NotASnapshot,
    /// The snapshot ends too early, or some of its bytes have changed.
    Damaged,
    /// The snapshot has more live keys than the store may hold. The others would begin anew, so
    /// none is restored.
    TooManyKeys {
        /// The store's bound.
        max_keys: usize,
    },
    /// The snapshot has more policies than a store may have.
    TooManyPolicies(ConfigError),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the snapshot cannot be read: {error}"),
            Self::NotASnapshot => f.write_str(
                "this is no snapshot of version 1; remove the file to begin with unused keys, or \
                    name the right file",
            ),
            Self::Damaged => f.write_str(
                "the snapshot is cut short or its bytes have changed; restore an older one, or \
                    remove it to begin with \
                 unused keys",
            ),
            Self::TooManyKeys { max_keys } => {
                write!(
                    f,
                    "the snapshot has more live keys than max_keys, which is {max_keys}; raise it"
                )
            }
            Self::TooManyPolicies(error) => write!(f, "the snapshot does not fit: {error}"),
        }
    }
}

impl Error for RestoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::TooManyPolicies(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for RestoreError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
