//! A client that keeps to requests and tokens in each period. Run it with
//! `cargo run -p llm-client`.

mod limits;
mod model;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use limits::{Settings, prompt_tokens};
use reqwest::{Client, Request, Response, StatusCode};
use serde_json::{Value, json};
use throttle_tower::shape::{Shape, ShapeUsage, Shaper};
use throttle_tower::{ConfigError, Pace, ShapeLayer};
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let settings = Settings::parse();
    let (period, requests, tokens) = (settings.period(), settings.requests, settings.tokens);
    println!(
        "{} calls to a model that admits {requests} requests and {tokens} tokens in {period:?}",
        settings.count
    );
    let with = batch(paced(Client::new(), &settings)?, &settings).await?;
    with.print("with the shaper");
    let without = batch(Client::new(), &settings).await?;
    without.print("without it");
    Ok(if with.refused == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A client that keeps both paces. Its clones share them.
type Paced = Shape<Client, Request, Response>;

fn paced(client: Client, settings: &Settings) -> Result<Paced, ConfigError> {
    // The longest wait bounds the largest call, too: its tokens must fit it.
    let requests = Pace::new(settings.requests()).max_wait(Duration::from_secs(300));
    let pace = Shaper::builder(requests).by_unit("tokens", settings.tokens());
    let layer = ShapeLayer::of(pace.build()?)
        .by_unit("tokens", reserved)?
        // Where the model asks for a pause, or for less, that counts.
        .obey_upstream_of(|response: &Response| Some((response.status(), response.headers())))
        // What was used stands in the body: the function that reads the body settles it.
        .settle_with(|response: &mut Response, usage| {
            response.extensions_mut().insert(usage);
        });
    Ok(layer.layer(client))
}

/// The tokens that a call may use: those of its prompt, and the longest answer.
fn reserved(request: &Request) -> u64 {
    let stated = request
        .headers()
        .get(model::RESERVED)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    stated.unwrap_or(0)
}

fn question(model: SocketAddr, number: u64) -> reqwest::Result<Request> {
    // Some prompts are long, and every fifth answer may be.
    let prompt = "Tell me more about rivers. ".repeat(1 + number as usize % 4 * 10);
    let max_tokens = if number.is_multiple_of(5) { 600 } else { 90 };
    Client::new()
        .post(format!("http://{model}/v1/chat/completions"))
        .header(model::RESERVED, prompt_tokens(&prompt) + max_tokens)
        .json(&json!({ "prompt": prompt, "max_tokens": max_tokens }))
        .build()
}

/// What became of a batch of calls.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    answered: u64,
    refused: u64,
    reserved: u64,
    used: u64,
    took: Duration,
}

/// Each caller makes its next call after its last answer.
const CALLERS: u64 = 8;

/// Makes all calls to a model of their own.
async fn batch<S>(client: S, settings: &Settings) -> anyhow::Result<Outcome>
where
    S: Service<Request, Response = Response, Future: Send> + Clone + Send + 'static,
    S::Error: Error + Send + Sync,
{
    let (model, began) = (model::start(settings).await?, Instant::now());
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (mut client, count) = (client.clone(), settings.count);
        callers.spawn(async move {
            let mut outcome = Outcome::default();
            for number in (caller..count).step_by(CALLERS as usize) {
                let request = question(model, number)?;
                outcome.reserved += reserved(&request);
                match read(client.ready().await?.call(request).await?).await? {
                    Some(used) => {
                        outcome.answered += 1;
                        outcome.used += used;
                    }
                    None => outcome.refused += 1,
                }
            }
            anyhow::Ok(outcome)
        });
    }
    let mut outcome = Outcome::default();
    while let Some(caller) = callers.join_next().await {
        outcome.add(&caller??);
    }
    outcome.took = began.elapsed();
    Ok(outcome)
}

/// Reads what an answer has used, and settles it; `None` for a refusal.
async fn read(mut response: Response) -> anyhow::Result<Option<u64>> {
    let usage = response.extensions_mut().remove::<ShapeUsage>();
    let used = match response.status() {
        StatusCode::TOO_MANY_REQUESTS => None,
        _ => response.error_for_status()?.json::<Value>().await?["usage"]["total_tokens"].as_u64(),
    };
    if let Some(usage) = usage {
        usage.settle("tokens", used.unwrap_or(0))?;
    }
    Ok(used)
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.reserved += other.reserved;
        self.used += other.used;
    }

    fn print(&self, how: &str) {
        let Self {
            answered,
            refused,
            reserved,
            used,
            took,
        } = self;
        println!(
            "{how:>16}: {answered:>4} answered, {refused:>4} refused, in {:.1} s",
            took.as_secs_f32()
        );
        println!("{:>16}  {reserved} tokens were reserved, {used} used", "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        count: 100,
        requests: 100,
        tokens: 10_000,
        period: 1,
    };

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_call_is_refused_that_waits_for_its_turn_by_both_paces() {
        let outcome = batch(paced(Client::new(), &SETTINGS).unwrap(), &SETTINGS)
            .await
            .unwrap();
        assert_eq!(
            (outcome.answered, outcome.refused),
            (SETTINGS.count, 0),
            "{outcome:?}"
        );
        assert!(outcome.used < outcome.reserved * 2 / 3, "{outcome:?}");
        // What was reserved in vain was given back, or it would have taken longer.
        let reserved = Duration::from_secs(1) * outcome.reserved as u32 / SETTINGS.tokens as u32;
        assert!(
            outcome.took < reserved,
            "{:?} where {reserved:?} were reserved",
            outcome.took
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn calls_without_a_shaper_are_refused() {
        let outcome = batch(Client::new(), &SETTINGS).await.unwrap();
        assert!(outcome.refused > 10 && outcome.answered > 0, "{outcome:?}");
        assert_eq!(outcome.answered + outcome.refused, SETTINGS.count);
    }
}
