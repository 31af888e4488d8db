//! The scripts in an embedded Lua, without a server.

mod edges;
mod embedded;
mod hostile;
mod machine;
mod random;
mod redis;
mod traces;
