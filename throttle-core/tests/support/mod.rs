//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod golden;
pub(crate) mod naive;
