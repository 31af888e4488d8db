//! What happens to a request, a step a file.

pub(super) mod decide;
mod forecast;
mod refund_dropped;
pub(super) mod refuse_early;
pub(super) mod settle;
pub(super) mod wait_queue;
mod write_headers;
