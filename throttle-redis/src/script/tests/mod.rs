//! The scripts in an embedded Lua, without a server.

mod edges;
mod exceptions;
mod golden;
mod hostile;
mod laws;
mod machine;
mod random;
mod redis;
mod tiers;
