//! What one descriptor of a request is limited by.

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use throttle_core::{Algorithm, Key};

use super::counters::Counters;
use super::rule::Rule;

/// What a descriptor has found.
pub struct Match {
    /// The number of its policy; `None` for an unlimited rule.
    pub policy: Option<usize>,
    pub key: Key,
    /// The descriptor's own limit, which decides in place of the policy's.
    pub under: Option<Arc<Algorithm>>,
    pub shown: RateLimit,
    /// `None` if the limit is the descriptor's own.
    pub rule: Option<Arc<Rule>>,
    pub counters: Arc<Counters>,
}

impl Match {
    pub fn denies(&self) -> bool {
        self.shown.requests_per_unit == 0
    }

    /// What other rules replace it by; of most it is empty, which no rule replaces.
    pub fn name(&self) -> &str {
        self.rule.as_ref().map_or("", |rule| &rule.name)
    }

    pub fn is_quota(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.is_quota)
    }

    /// Whether hits that do not fit take what is left.
    pub fn charges_refused(&self) -> bool {
        !self.denies() && self.rule.as_ref().is_some_and(|rule| rule.charges_refused)
    }

    pub fn is_shadow(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.is_shadow)
    }
}

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    Charge(u64),
    /// Whether one more hit would be admitted.
    Look,
    Refund(u64),
}

impl Hits {
    /// A descriptor's hits go before those of the request, where 0 counts as 1.
    pub fn of(descriptor: &RateLimitDescriptor, request: u32) -> Self {
        let own = descriptor.hits_addend.as_ref().map(|own| own.value);
        match own.unwrap_or(u64::from(request.max(1))) {
            0 => Self::Look,
            hits if descriptor.is_negative_hits => Self::Refund(hits),
            hits => Self::Charge(hits),
        }
    }

    /// The hits of two descriptors that are one key of one rule.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Charge(one), Self::Charge(two)) => Self::Charge(one.saturating_add(two)),
            (Self::Refund(one), Self::Refund(two)) => Self::Refund(one.saturating_add(two)),
            (Self::Look, hits) | (hits, Self::Look) => hits,
            (Self::Charge(used), Self::Refund(back)) | (Self::Refund(back), Self::Charge(used)) => {
                match used.cmp(&back) {
                    std::cmp::Ordering::Greater => Self::Charge(used - back),
                    std::cmp::Ordering::Equal => Self::Look,
                    std::cmp::Ordering::Less => Self::Refund(back - used),
                }
            }
        }
    }
}
