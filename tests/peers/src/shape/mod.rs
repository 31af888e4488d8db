//! Shapers: what makes callers wait for their turn instead of refusing them.

mod cost;
mod late;
mod pacers;
mod promise;
pub mod waiting;

pub fn run() {
    cost::run();
    late::run();
    waiting::run();
    promise::run();
}
