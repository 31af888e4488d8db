//! The scripts in an embedded Lua, without a server.

mod edges;
mod golden;
mod hostile;
mod laws;
mod machine;
mod random;
mod redis;
mod tiers;
