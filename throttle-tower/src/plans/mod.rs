//! Limits whose size depends on the caller's plan: an identity is in a tier, and a lookup of yours
//! names the tier, or returns [parameters of the identity's own](Tier::own).
//!
//! [`plans`] starts such a limit. What happens with each request (the cache, the shared lookups,
//! the deadline) is in [`PlansWithoutLookup::lookup`].

mod builder;
mod cache;
mod identity;
mod identity_tier;
#[cfg(test)]
mod tests;
mod tier;
mod tier_lookup;

pub use self::builder::{Plans, PlansUnkeyed, PlansWithoutLookup, plans};
pub use self::tier::{IntoTier, LookupFailed, Tier};
