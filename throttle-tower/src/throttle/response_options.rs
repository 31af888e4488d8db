use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};

use super::report_in::ReportIn;
use super::warning::Watch;
use crate::headers::{Dialect, SdkHints};

/// What shapes the responses, those of the inner service too.
#[derive(Clone, Default)]
pub(crate) struct ResponseOptions {
    pub(crate) dialect: Dialect,
    pub(super) hide_headers: Option<HideHeaders>,
    pub(crate) sdk_hints: Option<SdkHints>,
    pub(super) report_in: ReportIn,
    pub(super) watch: Watch,
}

pub(super) type HideHeaders = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl ResponseOptions {
    /// Whether a response goes without the rate-limit headers.
    pub(super) fn hides<Body>(&self, response: &Response<Body>) -> bool {
        self.hide_headers
            .as_ref()
            .is_some_and(|hide| hide(response.status(), response.headers()))
    }
}
