//! The attacks of `tests/ATTACKS.md`, and a site that is not attacked.

mod e2e;
mod identity;
mod memory;
mod output;
mod protocol;
mod state;
mod support;
mod time;
