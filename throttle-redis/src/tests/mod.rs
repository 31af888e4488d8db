//! Tests of the parts together, without a server and without a clock.

mod fleet;
