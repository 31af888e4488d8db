//! The conformance kit of throttle-core, on real servers, over every kind of connection.
//!
//! What an algorithm decides is worked out by the same scripts on every connection. So each case
//! runs on each algorithm three times only: where calls are batched, where refusals are cached in
//! the process, and where each key has a slot of its own. On the other connections it runs on one
//! algorithm.

mod clustered;
mod fixture;

use fixture::{AppPool, Cached, OneByOne, Pooled, Single};
use throttle_core::conformance_tests;

mod single {
    use super::*;
    conformance_tests!(Single);
}

mod pooled {
    use super::*;
    conformance_tests!(Pooled);
}

mod app_pool {
    use super::*;
    conformance_tests!(AppPool);
}

/// Refusals are cached, and used as long as they are true.
mod cached {
    use super::*;
    conformance_tests!(Cached);
}

/// Not batched: as on a cluster, but on one server.
mod unmerged {
    use super::*;
    conformance_tests!(OneByOne);
}
