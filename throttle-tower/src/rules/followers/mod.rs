//! What a rule file does to its layer, and what it asks of it.

pub(super) mod explain;
