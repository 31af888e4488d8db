//! A client, and patience.

use std::time::{Duration, Instant};

use reqwest::{Client, Method};
use serde_json::Value;

pub fn client() -> Client {
    Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(30))
        .build()
        .expect(
            "a client \
        without TLS",
        )
}

/// The body of a successful response.
pub async fn text(client: &Client, url: &str) -> Result<String, String> {
    let response = client
        .get(url)
        .send()
        .await
        .map_err(|error| format!("{url}: {error:?}"))?;
    let status = response.status();
    let body = response
        .text()
        .await
        .map_err(|error| format!("{url}: {error:?}"))?;
    if status.is_success() {
        Ok(body)
    } else {
        Err(format!("{url}: {status}: {body}"))
    }
}

/// Sends JSON, and returns the status and the JSON of the response.
pub async fn json(
    client: &Client,
    method: Method,
    url: &str,
    body: Option<&Value>,
) -> Result<(u16, Value), String> {
    let mut request = client.request(method, url);
    if let Some(body) = body {
        request = request
            .header("content-type", "application/json")
            .body(body.to_string());
    }
    let response = request
        .send()
        .await
        .map_err(|error| format!("{url}: {error:?}"))?;
    let status = response.status().as_u16();
    let body = response
        .text()
        .await
        .map_err(|error| format!("{url}: {error:?}"))?;
    Ok((
        status,
        serde_json::from_str(&body).map_err(|error| format!("{url}: {error}: {body}"))?,
    ))
}

/// Calls `ask` until it returns `Ok`.
///
/// # Panics
///
/// With its last error, when the time is over.
pub async fn until<T>(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(found) => return found,
            Err(error) => assert!(
                start.elapsed() < limit,
                "waited {limit:?} in vain for {what}: {error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
