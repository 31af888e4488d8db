//! The laws, each as properties over every algorithm, compositions and the memory backend.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod bans;
mod envelope;
mod equivalences;
mod exceptions;
mod full_store;
mod law_01_denials;
mod law_02_03_04_answers;
mod law_05_06_atomicity;
mod law_07_changed_limits;
mod law_07_lying_clocks;
mod law_08_one_answer;
mod law_09_forgetting;
mod law_10_charges;
mod law_11_keys;
mod law_12_never_slower;
mod law_14_looking;
mod local_share;
mod local_share_backend;
mod memory_store;
mod names;
mod parameters;
mod reserves;
mod shares;
mod snapshots;
mod traps;
