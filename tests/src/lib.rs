//! Holds only tests, and the documents whose code blocks are compiled and run with them.

/// The front page.
#[doc = include_str!("../../README.md")]
pub mod readme {}

/// Why it is as it is.
#[doc = include_str!("../../DESIGN.md")]
pub mod design {}

/// How to change it.
#[doc = include_str!("../../CONTRIBUTING.md")]
pub mod contributing {}

/// The front pages of the packages.
#[doc = include_str!("../../throttle-core/README.md")]
#[doc = include_str!("../../throttle-tower/README.md")]
#[doc = include_str!("../../throttle-redis/README.md")]
pub mod package_readmes {}
