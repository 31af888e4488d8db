//! The attacks of `tests/ATTACKS.md`, and a site that nobody attacks.

mod e2e;
mod identity;
mod memory;
mod output;
mod protocol;
mod state;
mod support;
mod time;
