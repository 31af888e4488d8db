//! Tests that start other programs and mostly wait for them, so that they share the processors
//! well: the fuzzer's targets run beside a Prometheus and the validators. Tests that measure time,
//! watch numbers that change, or count everything in their process are programs of their own.

mod bans;
mod copies;
mod forge;
mod fuzz;
mod goaccess;
mod nginx;
mod openapi;
mod pictures;
mod prometheus;
mod ratelimit_server;
mod ratelimit_server_stores;
mod replay_pages;
mod schema;
