//! The rare steps of a backend, each on the keys of one policy.

use crate::algorithm::{Ban, Exception};
use crate::backend_error::{BackendError, BackendErrorKind};
use crate::key::Key;

/// A rare step on the keys of one policy, which [`Backend::run`](crate::Backend::run) runs.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::{Exception, KeyStep, Treatment};
/// use throttle_core::{Backend, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate, Timestamp};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let memory = MemoryBackend::new();
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let set = Arc::new(memory.prepare(set)?);
///
/// let ada = Key::from("ada");
/// let exempt = Exception { treatment: Treatment::Exempt, until: Timestamp::MAX };
/// memory.run(&set, 0, KeyStep::Except(ada.clone(), Some(exempt))).await?;
/// assert_eq!(memory.run(&set, 0, KeyStep::Exceptions { most: 100 }).await?.len(), 1);
/// memory.run(&set, 0, KeyStep::Reset(ada)).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyStep {
    /// Resets a key. The key is then unused, and its strikes and bans are forgotten, unless it
    /// shares an overflow bucket of a full store. It must have the parts of the key that was
    /// charged: bytes are not the same part as a text.
    Reset(Key),
    /// Sets an exception for a key, in place of one that there is; `None` lifts it, and forgets the
    /// key's strikes and bans. The used units stay used. The step fails if the exception
    /// [cannot be](Exception::check), or if there is no room for it: it is never lost before it is
    /// over.
    ///
    /// Every process of the store decides by it from the key's next decision on. A share that
    /// decides while a store fails knows no exceptions.
    Except(Key, Option<Exception>),
    /// Counts a strike of a key, as [`Ban::strike`] says. Returns the ban that the strike begins:
    /// of N strikes that race for the last one before a ban, one begins it. The used units stay
    /// used. The step fails if there is no room for the strike.
    Strike(Key, Ban),
    /// Lists the keys with an exception that is not over, at most `most` of them.
    Exceptions {
        /// How many keys to list at most.
        most: usize,
    },
}

impl KeyStep {
    /// Returns the error of a backend that does not run this step.
    ///
    /// ```
    /// use throttle_core::BackendErrorKind;
    /// use throttle_core::backend::KeyStep;
    ///
    /// let error = KeyStep::Exceptions { most: 9 }.unsupported();
    /// assert_eq!(error.kind(), BackendErrorKind::Unsupported);
    /// assert!(error.is_uncharged());
    /// ```
    #[must_use]
    pub fn unsupported(&self) -> BackendError {
        let why = match self {
            Self::Reset(_) => "this backend resets no single keys",
            _ => "this backend has no exceptions for single keys",
        };
        BackendError::new(BackendErrorKind::Unsupported)
            .uncharged()
            .with_source(why)
    }
}

/// A key with an exception.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::{Exception, KeyStep, Treatment};
/// use throttle_core::{Backend, Gcra, Key, MemoryBackend, Policy, PolicySet, Rate, Timestamp};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let memory = MemoryBackend::new();
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let set = Arc::new(memory.prepare(set)?);
/// let exempt = Exception { treatment: Treatment::Exempt, until: Timestamp::MAX };
/// memory.run(&set, 0, KeyStep::Except(Key::from("ada"), Some(exempt.clone()))).await?;
/// let listed = memory.run(&set, 0, KeyStep::Exceptions { most: 100 }).await?;
/// assert_eq!((listed[0].key.len(), &listed[0].exception), (32, &exempt));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceptedKey {
    /// What the store calls the key: a digest, unless the store holds readable keys.
    pub key: String,
    /// How the key is treated.
    pub exception: Exception,
}
