//! A client with middleware, at a steady pace. Run it with
//! `cargo run -p reqwest-middleware-client`.

mod pace;
mod upstream;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pace::PaceMiddleware;
use reqwest::{Client, StatusCode};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use throttle_tower::shape::Shaper;
use throttle_tower::{Pace, Rate};

/// Calls a second that the upstream admits.
const ADMITTED: u64 = 20;
/// Calls a second that the client would make.
const PACE: u64 = 50;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = format!("http://{}/", upstream::start(ADMITTED).await?);
    println!("100 calls to an upstream that admits {ADMITTED} a second\n");
    let plain = ClientBuilder::new(Client::new()).build();
    show("without the middleware", &calls(&plain, &url, 100).await?);
    tokio::time::sleep(Duration::from_secs(1)).await;
    show("with it", &calls(&paced()?, &url, 100).await?);
    Ok(())
}

fn paced() -> anyhow::Result<ClientWithMiddleware> {
    let pace = Pace::new(Rate::per_second(PACE)).max_wait(Duration::from_secs(30));
    Ok(ClientBuilder::new(Client::new())
        .with(PaceMiddleware(Shaper::new(pace)?))
        .build())
}

/// How many calls had which answer, and how long all took.
struct Outcome {
    answers: BTreeMap<StatusCode, u64>,
    took: Duration,
}

/// Makes calls one after the other.
async fn calls(client: &ClientWithMiddleware, url: &str, count: u64) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let mut answers = BTreeMap::new();
    for _ in 0..count {
        *answers
            .entry(client.get(url).send().await?.status())
            .or_default() += 1;
    }
    Ok(Outcome {
        answers,
        took: began.elapsed(),
    })
}

fn show(what: &str, Outcome { answers, took }: &Outcome) {
    println!("{what}, in {:.1} s:", took.as_secs_f64());
    for (status, count) in answers {
        println!("{count:>7}  {status}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_call_is_refused_and_calls_keep_to_the_upstreams_pace() -> anyhow::Result<()> {
        let url = format!("http://{}/", upstream::start(ADMITTED).await?);
        let Outcome { answers, took } = calls(&paced()?, &url, 40).await?;
        assert_eq!(answers, [(StatusCode::OK, 40)].into());
        assert!(
            took >= Duration::from_millis(900),
            "{took:?}: 20 at once, and 20 more in a second"
        );
        Ok(())
    }

    #[tokio::test]
    async fn call_whose_turn_is_too_far_away_fails_at_once() -> anyhow::Result<()> {
        let url = format!("http://{}/", upstream::start(ADMITTED).await?);
        let pace = Pace::new(Rate::per_hour(1)).max_wait(Duration::ZERO);
        let client = ClientBuilder::new(Client::new())
            .with(PaceMiddleware(Shaper::new(pace)?))
            .build();
        assert_eq!(client.get(&url).send().await?.status(), StatusCode::OK);
        let error = client
            .get(&url)
            .send()
            .await
            .expect_err("an hour is too far away");
        assert!(
            error.is_middleware() && error.to_string().contains("max_wait"),
            "{error:?}"
        );
        Ok(())
    }
}
