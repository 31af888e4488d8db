use super::registry::Registry;
use throttle_tower::client_ip::ClientIp;
use throttle_tower::limit::{OnError, OnMissing};

/// What the limits of a file are read with.
pub(super) struct Context<'r> {
    pub(super) registry: &'r Registry,
    pub(super) client_ip: ClientIp,
    pub(super) defaults: Defaults,
}

/// `[defaults]`
#[derive(Default)]
pub(super) struct Defaults {
    pub(super) on_error: Option<OnError>,
    pub(super) on_missing: Option<OnMissing>,
}
