//! The middleware.

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};
use throttle_tower::shape::Shaper;
use tokio::time::Instant;

/// Delays each call until its turn comes, and obeys what the upstream says. Each host has a pace of
/// its own.
pub struct PaceMiddleware(pub Shaper);

#[async_trait::async_trait]
impl Middleware for PaceMiddleware {
    async fn handle(
        &self,
        call: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let host = call.url().host_str().unwrap_or_default().to_owned();
        // A call whose turn is too far away fails at once, and says how long to wait.
        self.0
            .schedule(host.as_str(), 1)
            .await
            .map_err(Error::middleware)?;
        let left = Instant::now();
        let response = next.run(call, extensions).await?;
        self.0
            .obey(host.as_str(), left, response.status(), response.headers());
        Ok(response)
    }
}
