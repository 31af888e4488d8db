//! Charges that depend on the outcome, through a real server and a real client, in memory and on a
//! real Redis.

mod app_pool;
mod attempts;
mod disconnects;
mod estimates;
mod exhausted;
mod faults;
mod handle;
mod headers;
mod holding;
mod holding_any;
mod holding_over_a_store;
mod holding_unpolled;
mod in_flight;
mod model;
mod outcomes;
mod priorities;
mod races;
mod site;
mod store;
mod streams;
