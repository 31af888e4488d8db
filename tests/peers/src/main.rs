//! Compares throttle with its peers in one process and one run: see README.md.

mod alloc;
#[cfg(feature = "compare")]
mod compare;
mod decide;
mod instructions;
mod layer;
mod memory;
mod own;
mod peers;
#[cfg(feature = "ratelimit")]
mod ratelimit;
mod report;
mod rivals;
mod server;
mod shape;
mod stage;

use std::env;

const SECTIONS: &[(&str, fn())] = &[
    ("decide", decide::run),
    ("rivals", rivals::run),
    ("own", own::run),
    ("memory", memory::run),
    ("layer", layer::run),
    ("cost", shape::cost::run),
    ("late", shape::late::run),
    ("waiting", shape::waiting::run),
    ("promise", shape::promise::run),
    ("server", server::run),
    ("instructions", instructions::run),
    ("check", instructions::check),
    #[cfg(feature = "ratelimit")]
    ("ratelimit", ratelimit::run),
];

/// What this program does as a process of its own, for a section that needs one, with the process's
/// arguments.
type Child = fn(&[String]);
const CHILDREN: &[(&str, Child)] = &[
    (memory::CHILD, memory::child),
    (instructions::CHILD, instructions::child),
    (server::CHILD, server::child),
    #[cfg(feature = "ratelimit")]
    (ratelimit::CHILD, ratelimit::child),
    #[cfg(feature = "compare")]
    (compare::clock::CHILD, compare::clock::child),
    #[cfg(feature = "compare")]
    (compare::under_wrk::CHILD, compare::under_wrk::child),
    // Not a child, but it has arguments of its own, too.
    #[cfg(feature = "compare")]
    ("compare", compare::run),
];

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, child @ ..] = args.as_slice()
        && let Some((_, run)) = CHILDREN.iter().find(|(name, _)| name == flag)
    {
        return run(child);
    }
    if let Some(unknown) = args
        .iter()
        .find(|arg| SECTIONS.iter().all(|(name, _)| name != arg))
    {
        eprintln!(
            "no section {unknown:?}; there are: {}",
            SECTIONS
                .iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
                .join(", ")
        );
        std::process::exit(2);
    }
    report::header();
    for (name, run) in SECTIONS {
        // These need other programs, so they run only on request.
        let on_request = matches!(*name, "instructions" | "check" | "server" | "ratelimit");
        if (args.is_empty() && !on_request) || args.iter().any(|arg| arg == name) {
            run();
        }
    }
}
