//! An upstream to try the client on. It records when calls arrive; one of its two hosts has a
//! limit.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
use tokio::net::TcpListener;

/// Admits every call.
pub const OPEN: &str = "open.example";
/// Admits half the pace, and announces it in its `RateLimit` headers.
pub const STRICT: &str = "strict.example";

/// When calls arrived, by host.
pub type Arrivals = Arc<Mutex<BTreeMap<String, Vec<Instant>>>>;

/// Starts the upstream on a free port; it ends with the process.
pub async fn start(rate: u64) -> anyhow::Result<(SocketAddr, Arrivals)> {
    let half = Gcra::new(Rate::per_second(rate.div_ceil(2))).burst(rate.div_ceil(2));
    let is_strict = |parts: &axum::http::request::Parts| host(&parts.headers) == STRICT;
    let throttle = ThrottleLayer::new(limit("half", half).by(Constant).when(is_strict))?;
    let arrivals = Arrivals::default();
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(throttle)
        // Outside the throttle, so that it also records the calls that the throttle refuses.
        .layer(from_fn_with_state(Arc::clone(&arrivals), note));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok((address, arrivals))
}

async fn note(State(arrivals): State<Arrivals>, request: Request, next: Next) -> Response {
    let now = Instant::now();
    let host = host(request.headers()).to_owned();
    arrivals
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(host)
        .or_default()
        .push(now);
    next.run(request).await
}

/// Returns the host that was called, without its port.
fn host(headers: &axum::http::HeaderMap) -> &str {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    host.split(':').next().unwrap_or_default()
}

/// Returns the most arrivals in any stretch of one period, wherever it begins.
pub fn most_in_any(period: Duration, arrivals: &[Instant]) -> usize {
    let mut arrivals = arrivals.to_vec();
    arrivals.sort_unstable();
    let mut from = 0;
    let mut most = 0;
    for (last, at) in arrivals.iter().enumerate() {
        while *at - arrivals[from] >= period {
            from += 1;
        }
        most = most.max(last + 1 - from);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_includes_its_start_and_excludes_its_end() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let second = Duration::from_secs(1);
        assert_eq!(most_in_any(second, &[]), 0);
        assert_eq!(
            most_in_any(second, &[at(0), at(999), at(1000), at(1999)]),
            2
        );
        assert_eq!(most_in_any(second, &[at(1500), at(0), at(700), at(999)]), 3);
    }
}
