//! Answers to requests, whatever protocol they came by.

mod answer;
mod ask;
#[cfg(test)]
mod cases;
mod decide;
mod hit;
mod metadata;
mod sets;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use throttle_core::BoxBackend;
use tonic::{Request, Response, Status};

use crate::check::Check;
use crate::limits::Config;
use crate::settings::Settings;
pub use metadata::without_null;
use sets::Sets;

/// The rate limit service. Clones share all.
#[derive(Clone)]
pub struct Service {
    backend: BoxBackend,
    in_force: Arc<ArcSwap<CurrentLimits>>,
    /// Domains with a rule file.
    pub by_rules: Arc<HashMap<String, Check>>,
    has_headers: bool,
    has_metadata: bool,
}

/// The limits that decide now.
#[derive(Default)]
pub struct CurrentLimits {
    pub config: Config,
    sets: Sets,
}

impl Service {
    pub fn new(backend: BoxBackend, config: Config, settings: &Settings) -> Self {
        let service = Self {
            backend,
            in_force: Arc::default(),
            by_rules: Arc::default(),
            has_headers: settings.headers,
            has_metadata: settings.dynamic_metadata,
        };
        service.replace(config);
        service
    }

    /// Puts other limits in force. What was used of limits of the same names stays used.
    pub fn replace(&self, config: Config) {
        let sets = Sets::default();
        self.in_force
            .store(Arc::new(CurrentLimits { config, sets }));
    }

    pub fn in_force(&self) -> Arc<CurrentLimits> {
        self.in_force.load_full()
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.answer(request.get_ref()).await.map(Response::new)
    }
}
