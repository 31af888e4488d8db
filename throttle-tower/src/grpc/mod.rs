//! Refusals as gRPC clients read them: a response without a body, whose headers are its trailers.
//!
//! The four messages of the details are written by hand, because they are frozen, and the crates
//! that generate such code change often. The tests in `tests/grpc` read them with tonic's decoder.

mod content_type;
mod details;
mod response;
mod text;
mod wire;
mod words;

pub(crate) use content_type::response_type;
pub(crate) use details::Violation;
pub(crate) use response::{DETAILS, PUSHBACK, STATUS};
pub(crate) use text::BASE64;
pub(crate) use words::{missing_key, quota_exceeded, reduced_capacity};
