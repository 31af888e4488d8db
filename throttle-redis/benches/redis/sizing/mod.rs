//! The figures of `SIZING.md` on this machine, and how many servers they take.

mod client;
mod memory;
mod table;
mod wire;
mod work;

use throttle_core::{PolicySet, PolicyTree};
use throttle_test_servers::Server;

use crate::scripts::policy;

pub(crate) fn run(server: &Server) {
    let work = work::measure(server);
    let bytes = wire::measure(server);
    let memory = memory::measure(server);
    table::print(&work, &bytes, memory);
}

/// Says what is being measured, where it is not in the way of the tables.
fn progress(what: &str) {
    eprintln!("measuring {what} …");
}

fn one_limit() -> PolicySet {
    PolicySet::new(policy("p")).expect("a set")
}

fn three_limits() -> PolicySet {
    let three = ["p", "q", "r"].map(|name| policy(name).into()).to_vec();
    PolicySet::new(PolicyTree::All(three)).expect("a set")
}
