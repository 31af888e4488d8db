//! Takes the programs before a migration from the guide's page, so that `tests/migrating.rs`
//! compiles them.

use std::path::Path;
use std::{env, fs};

fn main() {
    let page = "../../throttle-tower/src/guide/migrating.md";
    println!("cargo::rerun-if-changed={page}");
    let text = fs::read_to_string(page).expect("the page is in this repository");
    // Those after are marked `rust`, and rustdoc runs them.
    let programs = text
        .split("\n```rs\n")
        .skip(1)
        .filter_map(|rest| rest.split("\n```\n").next());
    let modules: String = programs
        .zip(1..)
        .map(|(program, n)| format!("mod before_{n} {{\n{program}\n}}\n"))
        .collect();
    let folder = env::var("OUT_DIR").expect("Cargo sets it");
    fs::write(Path::new(&folder).join("migrating.rs"), modules).expect("a folder of Cargo's");
}
