//! Refusals as gRPC clients read them: a response without a body, whose headers are its trailers.
//!
//! The four messages of the details are written by hand, because they are frozen, and the crates that generate such
//! code change often. The tests in `tests/grpc` read them with tonic's decoder.

mod content_type;
mod details;
mod response;
mod text;
mod wire;

pub(crate) use content_type::response_type;
pub(crate) use details::{QuotaDetails, Violation};
pub(crate) use response::{Code, DETAILS, GrpcRefusal, PUSHBACK, Retry, STATUS};
#[cfg(test)]
pub(crate) use text::base64;
