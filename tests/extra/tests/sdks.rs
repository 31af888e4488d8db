//! Clients that people use, at their default settings, against refusals with `SdkHints`. Each calls
//! again when the refusal says, never early and at most half a second late. If the wait is long,
//! those that read `x-should-retry` give up at once.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{Json, Response};
use axum::routing::any;
use axum::{Router, serve};
use serde_json::json;
use throttle_extra::sdk::{self, Language, PATIENCE};
use throttle_tower::extract::from_fn;
use throttle_tower::headers::SdkHints;
use throttle_tower::{Gcra, Key, Rate, ThrottleLayer, all, limit};
use tokio::net::TcpListener;

struct Client {
    language: Language,
    name: &'static str,
    /// Whether it prefers `retry-after-ms` to `Retry-After`.
    reads_millis: bool,
    /// Whether it reads `x-should-retry`. A client that does not sleeps for as long as
    /// `Retry-After` says.
    gives_up: bool,
}

const fn client(
    language: Language,
    name: &'static str,
    reads_millis: bool,
    gives_up: bool,
) -> Client {
    Client {
        language,
        name,
        reads_millis,
        gives_up,
    }
}

/// Which headers a client obeys.
const CLIENTS: [Client; 7] = [
    client(Language::Python, "openai", true, true),
    client(Language::Python, "anthropic", true, true),
    client(Language::Python, "urllib3", false, false),
    client(Language::JavaScript, "openai", true, true),
    client(Language::JavaScript, "anthropic", true, true),
    client(Language::JavaScript, "got", false, false),
    client(Language::JavaScript, "ky", false, false),
];

const LATE: Duration = Duration::from_millis(500);

/// One request, as the server sees it.
#[derive(Clone, Debug)]
struct Seen {
    arrived: Instant,
    answered: Instant,
    status: u16,
    retry_after: Option<Duration>,
    retry_after_ms: Option<Duration>,
    should_retry: Option<String>,
}

/// The requests of each client, by the first two segments of their paths.
type Log = Arc<Mutex<HashMap<String, Vec<Seen>>>>;

fn client_of(path: &str) -> String {
    path.split('/')
        .skip(1)
        .take(2)
        .collect::<Vec<_>>()
        .join("/")
}

async fn record(State(log): State<Log>, request: Request, next: Next) -> Response {
    let (client, arrived) = (client_of(request.uri().path()), Instant::now());
    let response = next.run(request).await;
    let header = |name| {
        response
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    let number = |name| header(name).map(|text| text.parse::<u64>().unwrap());
    let seen = Seen {
        arrived,
        answered: Instant::now(),
        status: response.status().as_u16(),
        retry_after: number("retry-after").map(Duration::from_secs),
        retry_after_ms: number("retry-after-ms").map(Duration::from_millis),
        should_retry: header("x-should-retry"),
    };
    log.lock().unwrap().entry(client).or_default().push(seen);
    response
}

/// A server that admits a request each 2.3 seconds on paths that begin with `/soon`, and one each
/// hour on others.
async fn server() -> (SocketAddr, Log) {
    let by_client = || from_fn(|parts: &Parts| Some(Key::from(client_of(parts.uri.path()))));
    let of = |soon: bool| move |parts: &Parts| parts.uri.path().starts_with("/soon") == soon;
    let limits = all([
        limit(
            "soon",
            Gcra::new(Rate::new(1, Duration::from_millis(2_300))),
        )
        .by(by_client())
        .when(of(true)),
        limit("late", Gcra::new(Rate::per_hour(1)))
            .by(by_client())
            .when(of(false)),
    ]);
    let throttle = ThrottleLayer::builder(limits)
        .sdk_hints(SdkHints::default())
        .build()
        .unwrap();
    let log = Log::default();
    // What both kinds of clients take for an answer.
    let answer = || async { Json(json!({ "id": "1", "choices": [], "content": [], "usage": {} })) };
    let app = Router::new()
        .fallback(any(answer))
        .layer(throttle)
        .layer(middleware::from_fn_with_state(Arc::clone(&log), record));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { serve(listener, app).await });
    (address, log)
}

/// Calls twice with a client, and returns what it printed, or `None` if it has not ended by then.
async fn call(client: &Client, url: &str, patience: Duration) -> Option<String> {
    let script = match client.language {
        Language::Python => "client.py",
        Language::JavaScript => "client.mjs",
    };
    sdk::run(client.language, script, &[client.name, url], patience).await
}

fn name(kind: &str, client: &Client) -> String {
    format!("{kind}/{:?}-{}", client.language, client.name)
}

/// The requests of a client that calls twice: the first is admitted, and the second refused at
/// least once.
fn refusal_and_rest(log: &Log, kind: &str, client: &Client) -> (Seen, Vec<Seen>) {
    let seen = log
        .lock()
        .unwrap()
        .get(&name(kind, client))
        .cloned()
        .unwrap_or_default();
    let [first, refusal, rest @ ..] = &*seen else {
        panic!("{}: {seen:?}", client.name)
    };
    assert_eq!(
        (first.status, refusal.status),
        (200, 429),
        "{}: {seen:?}",
        client.name
    );
    (refusal.clone(), rest.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_come_back_after_the_stated_wait() {
    let (address, log) = server().await;
    let calls = CLIENTS.iter().map(async |client| {
        let said = call(
            client,
            &format!("http://{address}/{}", name("soon", client)),
            PATIENCE,
        )
        .await;
        assert_eq!(said.as_deref(), Some("answered"), "{}", client.name);
        let (refusal, rest) = refusal_and_rest(&log, "soon", client);
        let [again] = &*rest else {
            panic!("{}: {rest:?}", client.name)
        };
        let (seconds, millis) = (
            refusal.retry_after.unwrap(),
            refusal.retry_after_ms.unwrap(),
        );
        assert!(
            millis <= seconds && seconds < millis + Duration::from_secs(1),
            "the same wait, \
            rounded up"
        );
        let stated = if client.reads_millis { millis } else { seconds };
        let waited = again.arrived - refusal.answered;
        println!(
            "{:?} {}: stated {stated:?}, waited {waited:?}",
            client.language, client.name
        );
        assert!(
            again.status == 200 && again.arrived - refusal.arrived >= stated,
            "{}: {waited:?} of {stated:?}",
            client.name
        );
        assert!(
            waited <= stated + LATE,
            "{}: {waited:?} of {stated:?}",
            client.name
        );
        assert_eq!(refusal.should_retry, None);
    });
    join_all(calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_read_the_hint_give_up_where_the_wait_is_long() {
    let (address, log) = server().await;
    let calls = CLIENTS.iter().map(async |client| {
        let url = format!("http://{address}/{}", name("late", client));
        // The others sleep, so it is enough to see that they have not called again for some
        // seconds.
        let patience = if client.gives_up {
            PATIENCE
        } else {
            Duration::from_secs(12)
        };
        let said = call(client, &url, patience).await;
        assert_eq!(
            said.as_deref(),
            client.gives_up.then_some("gave up"),
            "{}",
            client.name
        );
        let (refusal, rest) = refusal_and_rest(&log, "late", client);
        assert!(rest.is_empty(), "{}: {rest:?}", client.name);
        assert_eq!(refusal.should_retry.as_deref(), Some("false"));
        println!(
            "{:?} {}: {}",
            client.language,
            client.name,
            said.as_deref().unwrap_or("sleeps")
        );
    });
    join_all(calls).await;
}

/// One after the other: clients that start at the same time would make each other late.
async fn join_all(calls: impl Iterator<Item = impl Future<Output = ()>>) {
    for call in calls {
        call.await;
    }
}
