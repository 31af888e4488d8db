use http::HeaderValue;
use smallvec::SmallVec;

use super::dialect::Dialect;
use super::policy_status::PolicyTerms;
use super::{draft11, legacy};

/// The list of policies that a response announces, written once and cloned by reference from then on.
///
/// It keeps its dialect, because a list for one dialect is wrong in another. For requests to which only some policies
/// apply, build another one from that subset and keep it: clients expect the list to be stable.
#[derive(Clone, Debug)]
pub(crate) struct PolicyHeader {
    dialect: Dialect,
    value: Option<HeaderValue>,
}

impl PolicyHeader {
    /// Announces nothing.
    pub(crate) const NONE: Self = Self { dialect: Dialect::None, value: None };

    pub(crate) fn new<'a>(dialect: Dialect, policies: impl IntoIterator<Item = PolicyTerms<'a>>) -> Self {
        let policies: SmallVec<[PolicyTerms<'a>; 8]> = policies.into_iter().collect();
        let value = match dialect {
            Dialect::Draft11 => draft11::policy_list(&policies),
            Dialect::Draft07 | Dialect::Draft06 | Dialect::Draft03 => legacy::quota_list(&policies),
            Dialect::XRateLimit(_) | Dialect::OpenAi | Dialect::None => None,
        };
        // The first clone of a value allocates its reference count. This one spares the first request that.
        drop(value.clone());
        Self { dialect, value }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(super) fn value(&self) -> Option<&HeaderValue> {
        self.value.as_ref()
    }
}
