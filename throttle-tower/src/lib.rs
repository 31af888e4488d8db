//! Rate limiting for tower.

pub mod client_ip;
pub mod headers;
