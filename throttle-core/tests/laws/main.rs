//! The laws, each as properties over every algorithm, compositions and the memory backend.

#[path = "../support/mod.rs"]
mod support;

mod law_08_one_answer;
