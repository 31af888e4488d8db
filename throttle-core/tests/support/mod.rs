//! Support that the tests of this crate share.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

pub(crate) mod audited;
pub(crate) mod bounds;
pub(crate) mod exact;
pub(crate) mod golden;
pub(crate) mod machines;
pub(crate) mod naive;
pub(crate) mod plans;
pub(crate) mod reference;
pub(crate) mod restarts;
pub(crate) mod spec;
pub(crate) mod strategies;
pub(crate) mod trace;
