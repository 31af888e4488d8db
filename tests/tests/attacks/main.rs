//! What an attacker may try (`tests/ATTACKS.md`), and what clients of a site see that nobody attacks.

mod e2e;
mod identity;
mod memory;
mod output;
mod protocol;
mod state;
mod support;
mod time;
