//! The conformance kit of throttle-core, on real servers, over every kind of connection.

mod clustered;
mod fixture;

use fixture::{Cached, OneByOne, Pooled, Single};
use throttle_core::conformance_tests;

mod single {
    use super::*;
    conformance_tests!(Single);
}

mod pooled {
    use super::*;
    conformance_tests!(Pooled);
}

/// Refusals are kept, and used as long as they are true.
mod cached {
    use super::*;
    conformance_tests!(Cached);
}

/// Not batched: as on a cluster, but on one server.
mod unmerged {
    use super::*;
    conformance_tests!(OneByOne);
}
