//! An upstream that counts its calls, over real connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;

/// A server that records when it is called.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&arrivals);
        let note = move || {
            let noted = Arc::clone(&noted);
            async move { noted.lock().unwrap().push(Instant::now()) }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            axum::serve(listener, Router::new().route("/", get(note)))
                .await
                .unwrap();
        });
        Self { address, arrivals }
    }

    /// The largest number of calls in less than one period.
    pub(crate) fn most_within(&self, period: Duration) -> usize {
        let mut arrivals = self.arrivals.lock().unwrap().clone();
        arrivals.sort();
        let within = |first: usize| {
            arrivals[first..]
                .iter()
                .take_while(|at| **at - arrivals[first] < period)
                .count()
        };
        (0..arrivals.len()).map(within).max().unwrap_or(0)
    }

    pub(crate) fn count(&self) -> usize {
        self.arrivals.lock().unwrap().len()
    }
}
