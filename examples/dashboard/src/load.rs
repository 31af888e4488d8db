//! Clients in this process that keep the server busy: some obey what the server says, some do not.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Response};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

pub const WHAT_IT_DOES: &str =
    "clients in this process keep it busy, with about 120 requests a second and at most 66 \
connections (--no-load leaves them out):
  steady    five clients, 8 requests a second each; each waits when it is asked to
  bursty    30 requests at once every 5 seconds, then nothing
  greedy    40 requests a second with one key, and ignores Retry-After
  holding   opens six feeds at once with one key, which may have four, and reads them for seconds
  errands   reports, exports and payments, 12 requests a second each
";

/// What no client exceeds, however long the server takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The clients. They end when this is dropped.
pub struct Load(#[expect(dead_code, reason = "it is only kept")] JoinSet<()>);

pub fn start(server: SocketAddr) -> reqwest::Result<Load> {
    // Redirects and proxies of the environment have no place on the way to this process.
    let http = Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(15))
        .build()?;
    let visitor = |address: u8, key: &str| Visitor {
        http: http.clone(),
        server,
        address: format!("198.51.100.{address}"),
        key: key.to_owned(),
    };
    let mut clients = JoinSet::new();
    for number in 1..=5 {
        let plan = if number % 2 == 0 { "free" } else { "pro" };
        clients.spawn(steady(visitor(number, &format!("key_{plan}_{number}"))));
    }
    clients.spawn(bursty(visitor(20, "key_pro_bursty")));
    clients.spawn(greedy(visitor(30, "key_pro_greedy")));
    clients.spawn(holding(visitor(40, "key_pro_holding")));
    for path in ["/report", "/export?rows=60", "/pay"] {
        clients.spawn(errand(
            visitor(50, &format!("key_pro_{}", &path[1..4])),
            path,
        ));
    }
    Ok(Load(clients))
}

/// A client of one address with one key.
#[derive(Clone)]
struct Visitor {
    http: Client,
    server: SocketAddr,
    address: String,
    key: String,
}

impl Visitor {
    /// Without a response, the server is busy or gone.
    async fn get(&self, path: &str) -> Option<Response> {
        let url = format!("http://{}{path}", self.server);
        let request = self
            .http
            .get(url)
            .header("x-forwarded-for", &self.address)
            .header("x-api-key", &self.key);
        timeout(PATIENCE, request.send()).await.ok()?.ok()
    }
}

async fn steady(visitor: Visitor) {
    let mut due = interval(Duration::from_millis(125));
    loop {
        due.tick().await;
        if let Some(response) = visitor.get("/").await {
            sleep(retry_after(&response)).await;
        }
    }
}

async fn bursty(visitor: Visitor) {
    let mut due = interval(Duration::from_secs(5));
    loop {
        due.tick().await;
        let mut burst = JoinSet::new();
        for _ in 0..30 {
            let visitor = visitor.clone();
            burst.spawn(async move { visitor.get("/").await });
        }
        while burst.join_next().await.is_some() {}
    }
}

async fn greedy(visitor: Visitor) {
    let mut due = interval(Duration::from_millis(25));
    loop {
        due.tick().await;
        visitor.get("/").await;
    }
}

async fn holding(visitor: Visitor) {
    loop {
        let mut feeds = JoinSet::new();
        for _ in 0..6 {
            let visitor = visitor.clone();
            feeds.spawn(async move {
                if let Some(mut feed) = visitor.get("/feed").await {
                    while let Ok(Some(_)) = feed.chunk().await {}
                }
            });
        }
        // They disconnect early, which returns their permits.
        sleep(Duration::from_secs(4)).await;
        feeds.abort_all();
        sleep(Duration::from_secs(2)).await;
    }
}

async fn errand(visitor: Visitor, path: &'static str) {
    // Requests are not awaited one by one: they queue for their turn, up to eight at a time.
    let mut due = interval(Duration::from_millis(80));
    let mut under_way = JoinSet::new();
    loop {
        due.tick().await;
        while under_way.try_join_next().is_some() {}
        if under_way.len() < 8 {
            let visitor = visitor.clone();
            under_way.spawn(async move { visitor.get(path).await });
        }
    }
}

/// How long the server says to wait.
fn retry_after(response: &Response) -> Duration {
    let seconds = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}
