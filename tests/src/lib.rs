//! Tests across the crates, and the documents whose code blocks are compiled and run with them.

/// The front page.
#[doc = include_str!("../../README.md")]
pub mod readme {}

/// The reasons.
#[doc = include_str!("../../DESIGN.md")]
pub mod design {}

/// The checklists for changes.
#[doc = include_str!("../../CONTRIBUTING.md")]
pub mod contributing {}

/// The front page of each package.
#[doc = include_str!("../../throttle-core/README.md")]
#[doc = include_str!("../../throttle-tower/README.md")]
#[doc = include_str!("../../throttle-tower/rules/README.md")]
#[doc = include_str!("../../throttle-redis/README.md")]
pub mod package_readmes {}
