//! Rate limiting for tower.

pub mod headers;
