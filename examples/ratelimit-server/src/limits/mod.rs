//! Limits by descriptors: files in the format of envoyproxy/ratelimit, and what a descriptor finds.

mod algorithm;
mod config;
mod counters;
mod file;
mod load;
mod node;
mod rule;
#[cfg(test)]
mod tests;
mod unit;

pub use config::Config;
pub use rule::Match;
pub use unit::Unit;
