use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::warning::Watch;
use crate::headers::Dialect;

/// What shapes the responses, those of the inner service too.
#[derive(Clone)]
pub(crate) struct ResponseOptions {
    pub(super) dialect: Dialect,
    pub(super) hide_headers: Option<HideHeaders>,
    pub(super) report_in_response: bool,
    pub(super) watch: Watch,
}

type HideHeaders = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl Default for ResponseOptions {
    fn default() -> Self {
        let (dialect, watch) = (Dialect::default(), Watch::default());
        Self { dialect, hide_headers: None, report_in_response: true, watch }
    }
}
