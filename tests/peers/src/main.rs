//! Compares throttle with its peers in one process and one run: see README.md.

mod alloc;
mod decide;
mod instructions;
mod layer;
mod memory;
mod own;
mod peers;
mod report;
mod shape;
mod stage;

use std::env;

const SECTIONS: [(&str, fn()); 9] = [
    ("decide", decide::run),
    ("own", own::run),
    ("memory", memory::run),
    ("layer", layer::run),
    ("cost", shape::cost::run),
    ("late", shape::late::run),
    ("waiting", shape::waiting::run),
    ("promise", shape::promise::run),
    ("instructions", instructions::run),
];

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, child @ ..] = args.as_slice()
        && flag == memory::CHILD
    {
        return memory::child(child);
    }
    if let [flag, child @ ..] = args.as_slice()
        && flag == instructions::CHILD
    {
        return instructions::child(child);
    }
    if let Some(unknown) = args.iter().find(|arg| SECTIONS.iter().all(|(name, _)| name != arg)) {
        eprintln!("no section {unknown:?}; there are: {}", SECTIONS.map(|(name, _)| name).join(", "));
        std::process::exit(2);
    }
    report::header();
    for (name, run) in SECTIONS {
        // Under callgrind everything is fifty times slower: only on request.
        let on_request = name == "instructions";
        if (args.is_empty() && !on_request) || args.iter().any(|arg| arg == name) {
            run();
        }
    }
}
