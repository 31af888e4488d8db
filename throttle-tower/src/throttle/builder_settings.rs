use std::sync::Arc;
use std::time::Duration;

use super::local_shares::LocalStore;
use super::response_builder::ResponseBuilder;
use super::response_options::{HideHeaders, ReportIn};
use super::warning::WarningHook;
use crate::headers::{Dialect, SdkHints};
use crate::limit::{Condition, OnError};
use crate::usage::OnSettleError;

/// What a program or a rule file sets on a layer. What is not set has its default.
#[derive(Clone, Default)]
pub(crate) struct BuilderSettings {
    /// Which requests the layer applies to.
    pub(crate) when: Option<Condition>,
    pub(super) response: Option<ResponseBuilder>,
    /// Whether gRPC requests are refused in its words.
    pub(super) grpc_refusals: Option<bool>,
    /// What a 503 asks its client to wait.
    pub(super) unavailable_retry_after: Option<Duration>,
    pub(super) on_error: Option<OnError>,
    pub(super) local_store: Option<LocalStore>,
    /// In percent.
    pub(super) retry_jitter: Option<u8>,
    /// Most requests that wait in queues at one time.
    pub(super) max_waiting: Option<usize>,
    pub(super) dialect: Option<Dialect>,
    pub(super) hide_headers: Option<HideHeaders>,
    pub(super) sdk_hints: Option<SdkHints>,
    pub(super) report_in: Option<ReportIn>,
    pub(super) on_warning: Option<Arc<WarningHook>>,
    pub(super) on_settle_error: Option<OnSettleError>,
}

impl BuilderSettings {
    /// These settings, and of `defaults` those that are not set here.
    pub(super) fn or(self, defaults: Self) -> Self {
        Self {
            when: self.when.or(defaults.when),
            response: self.response.or(defaults.response),
            grpc_refusals: self.grpc_refusals.or(defaults.grpc_refusals),
            unavailable_retry_after: self
                .unavailable_retry_after
                .or(defaults.unavailable_retry_after),
            on_error: self.on_error.or(defaults.on_error),
            local_store: self.local_store.or(defaults.local_store),
            retry_jitter: self.retry_jitter.or(defaults.retry_jitter),
            max_waiting: self.max_waiting.or(defaults.max_waiting),
            dialect: self.dialect.or(defaults.dialect),
            hide_headers: self.hide_headers.or(defaults.hide_headers),
            sdk_hints: self.sdk_hints.or(defaults.sdk_hints),
            report_in: self.report_in.or(defaults.report_in),
            on_warning: self.on_warning.or(defaults.on_warning),
            on_settle_error: self.on_settle_error.or(defaults.on_settle_error),
        }
    }
}
