//! What the tests of this crate need: child processes that end with the test, a client, and readers
//! of what the others say. Everything is on 127.0.0.1.

pub mod browser;
pub mod child;
pub mod example;
pub mod prometheus;
pub mod sdk;
pub mod series;
pub mod validator;
pub mod web;
