//! Where the key of a request comes from: at once from its head, or from a lookup.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Algorithm, ConfigError, Key};

use crate::extract::KeyExtractor;

#[derive(Clone)]
pub(crate) enum KeySource {
    Extracted(Arc<dyn KeyExtractor>),
    Future(KeyFuture),
    Tiered(Arc<dyn TierLookup>),
}

/// Starts the lookup of a request's key. The lookup ends within the duration.
type KeyFuture = Arc<dyn Fn(&Parts, Duration) -> LookedUp + Send + Sync>;

/// A key, if the request has one, and its tier.
pub(crate) type LookedUp = Pin<Box<dyn Future<Output = (Option<Key>, FoundTier)> + Send>>;

/// The parameters of a limit that are for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundTier {
    /// Those of a tier, by its number; 0 for a limit without tiers.
    Numbered(u8),
    /// Those of the identity itself.
    Own(Arc<Algorithm>),
}

impl FoundTier {
    /// The call under these parameters.
    #[inline]
    pub(crate) fn of(self, call: Call) -> Call {
        match self {
            Self::Numbered(tier) => call.in_tier(tier),
            Self::Own(own) => call.under(own),
        }
    }

    #[cfg(test)]
    pub(crate) fn number(&self) -> u8 {
        match self {
            Self::Numbered(number) => *number,
            Self::Own(_) => panic!("parameters of its own"),
        }
    }
}

/// Finds the key and the tier of a request.
pub(crate) trait TierLookup: Send + Sync {
    fn find(&self, parts: &Parts) -> FoundKey;

    fn extractor(&self) -> &dyn KeyExtractor;

    /// The same lookup, which calls `report` whenever a tier was found.
    fn reporting(&self, report: LookupReport) -> Arc<dyn TierLookup>;

    /// # Errors
    ///
    /// If the extractor cannot work, or a bound is out of range.
    fn check(&self) -> Result<(), ConfigError>;
}

/// How a tier was found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LookupResult {
    /// It was remembered.
    Remembered,
    /// The lookup returned one.
    Found,
    /// The lookup returned none.
    Unknown,
    /// The lookup failed, or was too late.
    Failed,
    /// The lookup returned parameters that the limit cannot have.
    Invalid,
    /// Too many lookups ran.
    TurnedAway,
}

impl LookupResult {
    /// The labels, by their numbers.
    pub(crate) const LABELS: [&str; 6] = [
        "remembered",
        "found",
        "unknown",
        "failed",
        "invalid",
        "turned_away",
    ];
}

/// Called with how a tier was found. Of several requests that wait for a lookup, the one that has
/// started it reports.
pub(crate) type LookupReport = Arc<dyn Fn(LookupResult) + Send + Sync>;

pub(crate) enum FoundKey {
    Now(Option<Key>, FoundTier),
    Later {
        /// The lookup starts when it is first polled.
        key: LookedUp,
        /// The key with the tier that it was last known to be in, if there is one.
        last: Option<(Key, FoundTier)>,
    },
}

impl KeySource {
    /// # Errors
    ///
    /// Names the setting that is wrong.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Extracted(extractor) => extractor.check(),
            Self::Tiered(lookup) => lookup.check(),
            Self::Future(_) => Ok(()),
        }
    }

    /// The extractor that reads the request's head; `None` for a closure that returns a future.
    pub(crate) fn extractor(&self) -> Option<&dyn KeyExtractor> {
        match self {
            Self::Extracted(extractor) => Some(extractor),
            Self::Tiered(lookup) => Some(lookup.extractor()),
            Self::Future(_) => None,
        }
    }

    /// What a warning calls it.
    pub(crate) fn describe(&self) -> String {
        self.extractor().map_or_else(
            || "the future of by_async".to_owned(),
            KeyExtractor::describe,
        )
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}
