//! The upstream: it records which worker called when.

use std::future::IntoFuture;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use tokio::net::TcpListener;

/// The calls that the upstream has seen: when each arrived, and from which worker.
#[derive(Clone, Default)]
pub struct Arrivals(Arc<Mutex<Vec<(Instant, usize)>>>);

impl Arrivals {
    fn note(&self, worker: usize) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The time is read under the lock, so that the calls are in order.
        seen.push((Instant::now(), worker));
    }

    fn between(&self, from: Instant, to: Instant) -> Vec<(Instant, usize)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |instant| seen.partition_point(|(at, _)| *at < instant);
        seen[place(from)..place(to)].to_vec()
    }

    /// Counts the calls of each worker; the first worker is number 1.
    pub fn by_worker(&self, from: Instant, to: Instant, workers: usize) -> Vec<usize> {
        let mut counts = vec![0; workers];
        for (_, worker) in self.between(from, to) {
            if let Some(count) = counts.get_mut(worker.wrapping_sub(1)) {
                *count += 1;
            }
        }
        counts
    }

    /// Returns the most calls in any stretch of one period, wherever it begins, between two
    /// instants.
    pub fn most_in_any(&self, period: Duration, from: Instant, to: Instant) -> usize {
        let seen = self.between(from, to);
        let mut first = 0;
        let mut most = 0;
        for (last, (at, _)) in seen.iter().enumerate() {
            while *at - seen[first].0 >= period {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most
    }
}

/// Starts the upstream on a free port; it ends with the process.
pub async fn start() -> anyhow::Result<(SocketAddr, Arrivals)> {
    let arrivals = Arrivals::default();
    let app = Router::new()
        .route("/", get(called))
        .with_state(arrivals.clone());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok((address, arrivals))
}

/// The query holds the worker's number.
async fn called(State(arrivals): State<Arrivals>, RawQuery(worker): RawQuery) {
    arrivals.note(worker.and_then(|worker| worker.parse().ok()).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_includes_its_start_and_excludes_its_end() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let arrivals = Arrivals(Arc::new(Mutex::new(
            [0, 999, 1000, 1500, 1999]
                .map(|millis| (at(millis), 1))
                .to_vec(),
        )));
        let second = Duration::from_secs(1);
        assert_eq!(arrivals.most_in_any(second, at(0), at(1500)), 2);
        assert_eq!(arrivals.most_in_any(second, at(0), at(2000)), 3);
        assert_eq!(arrivals.by_worker(at(999), at(1999), 2), [3, 0]);
    }
}
