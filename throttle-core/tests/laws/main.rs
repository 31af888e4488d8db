//! The laws, each as properties over every algorithm, compositions and the memory backend.

#[path = "../support/mod.rs"]
mod support;

mod law_01_denials;
mod law_02_03_04_answers;
mod law_08_one_answer;
