//! Exact rate limiting.
