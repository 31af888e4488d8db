//! Shapers, which make callers wait for their turn instead of refusing them.

pub mod cost;
pub mod late;
mod pacers;
pub mod promise;
pub mod waiting;
