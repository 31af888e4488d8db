//! The page over real layers and requests, at a time that the tests set.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendError, BackendErrorKind, Decision, Key, ManualClock, MemoryBackend,
};
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt, service_fn};

use super::Page;
use super::board::Board;
use super::rendered::PageData;
use crate::candidate::Flips;
use crate::event::{Activity, Event, Observer, Outcome, RequestSet};
use crate::lock::lock;
use crate::plans::Tier;
use crate::{
    Audit, Candidate, Constant, Gcra, Header, InFlight, LimitTree, Offenders, Rate,
    ThrottleBuilder, ThrottleLayer, all, limit,
};

const SECOND: Duration = Duration::from_secs(1);

/// A layer whose limits see no time pass.
fn layer_of(limits: impl Into<LimitTree>) -> ThrottleLayer<MemoryBackend<ManualClock>> {
    builder_of(limits).build().unwrap()
}

fn builder_of(limits: impl Into<LimitTree>) -> ThrottleBuilder<MemoryBackend<ManualClock>> {
    let memory = MemoryBackend::builder()
        .clock(ManualClock::default())
        .build();
    ThrottleLayer::builder(limits.into()).backend(memory)
}

/// Such a layer, and its page.
fn page_of(limits: impl Into<LimitTree>) -> (ThrottleLayer<MemoryBackend<ManualClock>>, Router) {
    observed(builder_of(limits))
}

fn observed<B: Backend>(builder: ThrottleBuilder<B>) -> (ThrottleLayer<B>, Router) {
    let page = Page::new();
    let layer = builder.observe(page.clone()).build().unwrap();
    (layer, page.router())
}

async fn send<B: Backend>(throttle: &ThrottleLayer<B>, key: &str) -> StatusCode {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let request = Request::get("/").header("x-key", key).body(()).unwrap();
    throttle
        .layer(inner)
        .oneshot(request)
        .await
        .unwrap()
        .status()
}

async fn get(page: &Router, path: &str) -> (StatusCode, HeaderMap, Body) {
    let response = page
        .clone()
        .oneshot(Request::get(path).body(Body::empty()).unwrap())
        .await
        .unwrap();
    let (head, body) = response.into_parts();
    (head.status, head.headers, body)
}

async fn text(page: &Router, path: &str) -> String {
    let (status, _, body) = get(page, path).await;
    assert_eq!(status, StatusCode::OK, "{path}");
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn data(page: &Router) -> Value {
    serde_json::from_str(&text(page, "/data.json").await).unwrap()
}

fn per_key(burst: u64) -> crate::Limit {
    limit("per-key", Gcra::new(Rate::per_hour(burst)).burst(burst)).by(Header::new("x-key"))
}

/// They are listed under their own names, whatever stands before them.
#[tokio::test(start_paused = true)]
async fn limits_that_do_not_apply_are_not_counted_for_others() {
    let total = |name: &str| limit(name, Gcra::new(Rate::per_hour(100)).burst(1)).by(Constant);
    let for_key =
        |name: &'static str| total(name).when(move |parts: &Parts| parts.headers["x-key"] == name);
    let (throttle, page) = page_of(all(["ada", "bob", "cyd"].map(for_key)));
    for key in ["bob", "bob", "cyd", "bob", "eve"] {
        send(&throttle, key).await;
    }
    advance(SECOND).await;
    let found = data(&page).await;
    let counts = |policy: usize| {
        let policy = &found["policies"][policy];
        [
            &policy["admitted"][0],
            &policy["refused"][0],
            &policy["binding"]["refused"],
        ]
        .map(|n| n.as_u64().unwrap())
    };
    assert_eq!([0, 1, 2].map(counts), [[0, 0, 0], [1, 2, 2], [1, 0, 0]]);
    let listed = |list: &str| -> Vec<String> {
        let keys = found[list].as_array().unwrap().iter();
        keys.map(|key| key["policy"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (found["binding"].as_str(), listed("offenders")),
        (Some("bob"), vec!["bob".to_owned()])
    );
    let mut tightest = listed("tightest");
    tightest.sort_unstable();
    assert_eq!(tightest, ["bob", "cyd"]);
}

#[tokio::test(start_paused = true)]
async fn data_is_what_was_done() {
    let total = limit("total", Gcra::new(Rate::per_hour(100)).burst(4)).by(Constant);
    let next = Candidate::of("next", layer_of(per_key(1))).unwrap();
    let page = Page::new().candidate(&next);
    let throttle = builder_of(all((per_key(2), total)))
        .observe(page.clone())
        .observe(next)
        .build()
        .unwrap();
    let page: Router = page.router();
    for key in ["ada", "ada", "ada", "bob"] {
        send(&throttle, key).await;
    }
    advance(SECOND).await;
    for key in ["bob", "cyd", "cyd"] {
        send(&throttle, key).await;
    }
    advance(SECOND).await;

    let mut found = data(&page).await;
    // Digests are under a secret.
    let ada = found["offenders"]
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["policy"] == "per-key")
        .unwrap()["key"]
        .clone();
    assert_eq!(
        found["tightest"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|key| key["key"] == ada)
            .count(),
        1,
        "the same one"
    );
    for list in ["tightest", "offenders"] {
        for key in found[list].as_array_mut().unwrap() {
            if key["key"] != "all" {
                assert_eq!(key["key"].as_str().unwrap().len(), 16);
                key["key"] = json!("digest");
            }
        }
    }
    let tight = |left, of, ms| json!({"policy": "per-key", "key": "digest", "left": left, "of": of, "resets_in_ms": ms});
    let hour = 3_600_000 - 2_000;
    assert_eq!(
        found,
        json!({
            "service": null,
            "reporting": true,
            "running_seconds": 2,
            "outcomes": {
                "admitted": 4, "refused": 3, "missing_key": 0, "no_permit": 0, "failed_open": 0, "failed_closed": 0
            },
            "requests": {"admitted": [3, 1], "refused": [1, 2]},
            "binding": "total",
            "policies": [
                {
                    "name": "per-key", "audited": false, "admitted": [3, 1], "refused": [1, 0],
                    "binding": {"refused": 1, "admitted": 4}, "queued": 0, "longest_wait_ms": 0
                },
                {
                    "name": "total", "audited": false, "admitted": [3, 1], "refused": [0, 2],
                    "binding": {"refused": 2, "admitted": 0}, "queued": 0, "longest_wait_ms": 0
                }
            ],
            "tightest": [
                tight(0, 2, hour + 1_000),
                tight(0, 2, hour),
                {"policy": "total", "key": "all", "left": 0, "of": 4, "resets_in_ms": 144_000 - 1_000},
            ],
            "decided_by": {
                "now": "store",
                "decisions": {"store": 7, "local": 0, "open": 0, "closed": 0},
                "changes": [{"seconds_ago": 2, "from": null, "to": "store", "why": null}]
            },
            "rules_changes": [],
            "store": {"answers": 0, "failures": 0, "slowest_ms": 0},
            "permits": [],
            "keys_held": 3,
            "offenders": [
                {"policy": "total", "key": "all", "refused": 2, "shown": null},
                {"policy": "per-key", "key": "digest", "refused": 1, "shown": null}
            ],
            "candidates": [{
                "name": "next",
                "both_admit": 2, "both_refuse": 2, "would_refuse": 2, "would_admit": 1, "not_decided": 0
            }]
        })
    );
}

/// Adds the names of all fields of an object and of what is in it.
#[tokio::test(start_paused = true)]
async fn audited_limit_shows_what_it_would_refuse_and_is_never_binding() {
    let total = limit("total", Gcra::new(Rate::per_hour(100)).burst(100)).by(Constant);
    let (throttle, page) = page_of(all((per_key(2).audit(Audit::Silent), total)));
    for _ in 0..5 {
        assert_eq!(send(&throttle, "ada").await, StatusCode::OK);
    }
    tokio::time::advance(SECOND).await;
    let data = data(&page).await;
    let of = |n: usize| {
        let policy = &data["policies"][n];
        (
            &policy["audited"],
            &policy["admitted"][0],
            &policy["refused"][0],
            &policy["binding"]["admitted"],
        )
    };
    assert_eq!(of(0), (&true.into(), &2.into(), &3.into(), &0.into()));
    assert_eq!(of(1), (&false.into(), &5.into(), &0.into(), &5.into()));
    assert_eq!(
        (&data["binding"], &data["requests"]["refused"][0]),
        (&"total".into(), &0.into())
    );
}

fn fields(data: &Value, found: &mut Vec<String>) {
    match data {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            found.push(name.clone());
            fields(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

#[tokio::test(start_paused = true)]
async fn every_field_is_documented() {
    let (throttle, page) = page_of(all((
        per_key(1),
        limit("in-flight", InFlight::new(1)).by(Constant),
    )));
    for _ in 0..2 {
        send(&throttle, "ada").await;
    }
    advance(SECOND).await;
    let mut names = Vec::new();
    fields(&data(&page).await, &mut names);
    let outcomes = Outcome::LABELS;
    let docs: Vec<_> = include_str!("mod.rs")
        .lines()
        .filter(|line| line.trim_start().starts_with("/// |"))
        .collect();
    for name in names
        .iter()
        .filter(|name| !outcomes.contains(&name.as_str()))
    {
        let documented = [
            format!("`{name}`"),
            format!(".{name}`"),
            format!("`{name}."),
        ];
        assert!(
            docs.iter()
                .any(|line| documented.iter().any(|name| line.contains(name))),
            "{name} is not documented"
        );
    }
    assert!(names.len() > 40, "each list has something in it");
}

#[tokio::test(start_paused = true)]
async fn nothing_yet_is_said_plainly() {
    let (_throttle, page) = page_of(per_key(1));
    advance(3 * SECOND).await;
    let data = data(&page).await;
    assert_eq!(
        data["requests"],
        json!({"admitted": [0, 0, 0], "refused": [0, 0, 0]})
    );
    assert_eq!(
        (
            &data["binding"],
            &data["decided_by"]["now"],
            &data["keys_held"]
        ),
        (&json!(null), &json!(null), &json!(0))
    );
    assert_eq!(
        (&data["tightest"], &data["offenders"]),
        (&json!([]), &json!([]))
    );
    assert!(
        text(&page, "/")
            .await
            .contains("No requests yet. This page fills when the first one arrives.")
    );
}

#[tokio::test(start_paused = true)]
async fn page_shows_all_layers_that_it_was_handed_to() {
    let page = Page::new();
    let other = limit("other", Gcra::new(Rate::per_hour(9)).burst(1)).by(Header::new("x-key"));
    let first = builder_of(per_key(2))
        .observe(page.clone())
        .build()
        .unwrap();
    let second = builder_of(all((other, per_key(2))))
        .observe(page.clone())
        .build()
        .unwrap();
    let page: Router = page.router();
    send(&first, "ada").await;
    for key in ["ada", "bob", "bob"] {
        send(&second, key).await;
    }
    advance(SECOND).await;
    let found = data(&page).await;
    let of = |n: usize| {
        let limit = &found["policies"][n];
        [&limit["name"], &limit["admitted"][0], &limit["refused"][0]].map(ToString::to_string)
    };
    assert_eq!(of(0), ["\"per-key\"", "3", "0"], "both count by the name");
    assert_eq!(of(1), ["\"other\"", "2", "1"]);
    assert_eq!(found["policies"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&found["keys_held"], &found["requests"]["refused"][0]),
        (&json!(5), &json!(1))
    );
    drop(second);
    advance(SECOND).await;
    let found = data(&page).await;
    assert_eq!(
        (
            &found["keys_held"],
            found["policies"].as_array().unwrap().len()
        ),
        (&json!(1), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn page_knows_whether_a_layer_reports_to_it() {
    let (throttle, page) = page_of(per_key(1));
    let is_reporting = async || {
        advance(SECOND).await;
        data(&page).await["reporting"].clone()
    };
    let service = throttle.layer(());
    assert_eq!(is_reporting().await, true);
    drop(throttle);
    assert_eq!(is_reporting().await, true, "a service is left");
    let again = service.to_layer();
    drop(service);
    assert_eq!(is_reporting().await, true, "a layer is left");
    drop(again);
    assert_eq!(is_reporting().await, false);
}

/// Numbers of each second since the start.
async fn admitted(page: &Router) -> Vec<u64> {
    let data = data(page).await;
    data["requests"]["admitted"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_in_their_seconds_however_many_came_before() {
    for limits in [
        LimitTree::from(per_key(1 << 20)),
        all((
            per_key(1 << 20),
            limit("in-flight", InFlight::new(9)).by(Constant),
        )),
        both(),
    ] {
        let (throttle, page) = page_of(limits);
        let mut expected = Vec::new();
        for second in 0..20 {
            let requests = if second % 3 == 0 { 3_000 } else { second % 3 };
            for _ in 0..requests {
                send(&throttle, "ada").await;
            }
            expected.push(requests);
            sleep(SECOND).await;
            assert_eq!(admitted(&page).await, expected);
        }
    }
}

fn both() -> LimitTree {
    all((per_key(1 << 20), total()))
}

/// A limit that all keys share. It is so high that no test uses it up.
fn total() -> crate::Limit {
    limit("total", Gcra::new(Rate::per_hour(1 << 20)).burst(1 << 20)).by(Constant)
}

#[tokio::test(start_paused = true)]
async fn few_requests_count_in_their_seconds_if_the_runtime_stands_still() {
    let (throttle, page) = page_of(per_key(1 << 20));
    for second in 1..=20 {
        for _ in 0..3 {
            send(&throttle, "ada").await;
        }
        // Timers come after this test's own steps.
        advance(SECOND).await;
        assert_eq!(admitted(&page).await, vec![3; second]);
    }
}

/// Of all seconds, also the running one.
fn refused(board: &Board) -> u64 {
    (0..=board.moment().second())
        .map(|second| u64::from(board.flows.requests.refused.get(second)))
        .sum()
}

#[test]
fn no_request_is_lost_or_counted_twice_while_the_page_is_read() {
    const EACH: u64 = 500;
    for round in 0..20 {
        let (observing, done) = (Observing::new(Page::new()), AtomicUsize::new(0));
        let (rendered, board) = (observing.page.rendered(), &observing.page.board);
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    (0..EACH).for_each(|_| observing.report(Outcome::MissingKey, None, &[]));
                    done.fetch_add(1, Ordering::Release);
                });
            }
            while done.load(Ordering::Acquire) < 20 {
                read(&rendered);
            }
        });
        assert_eq!(
            (refused(board), board.flows.outcomes()[2]),
            (20 * EACH, 20 * EACH),
            "{round}"
        );
    }
}

#[test]
fn law_14_request_waits_for_none_of_the_locks_of_the_page() {
    let page = Page::new();
    let throttle = builder_of(per_key(1))
        .observe(page.clone())
        .build()
        .unwrap();
    let board = &page.board;
    let held = (
        lock(&board.tightest.list),
        page.offenders.hold_lock(),
        lock(&board.flows.changes.seconds),
        lock(&board.layers),
    );
    let (done, is_done) = std::sync::mpsc::channel();
    let calling = throttle.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            for n in 0..500 {
                send(&calling, ["ada", "bob", &n.to_string()][n % 3]).await;
            }
        });
        done.send(()).unwrap();
    });
    is_done
        .recv_timeout(30 * SECOND)
        .expect("the requests waited for a lock that is held");
    drop(held);
    assert_eq!(board.flows.outcomes().iter().sum::<u64>(), 500);
}

fn tightest(data: &Value) -> Vec<(u64, u64)> {
    let keys = data["tightest"].as_array().unwrap().iter();
    keys.map(|key| (key["left"].as_u64().unwrap(), key["of"].as_u64().unwrap()))
        .collect()
}

/// Most requests of a burst are not noted.
#[tokio::test(start_paused = true)]
async fn key_that_a_burst_uses_up_is_shown_with_nothing_left() {
    for limits in [
        LimitTree::from(per_key(3_000)),
        all((
            per_key(3_000),
            limit("in-flight", InFlight::new(9)).by(Constant),
        )),
        all((per_key(3_000), total())),
    ] {
        let (throttle, page) = page_of(limits);
        for n in 0..3_000 {
            send(&throttle, "ada").await;
            send(&throttle, &format!("loose-{}", n % 50)).await;
        }
        sleep(SECOND).await;
        let found = tightest(&data(&page).await);
        assert_eq!((found[0], found.len()), ((0, 3_000), 10), "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_until_a_key_is_full_again_is_rounded_up_to_milliseconds() {
    let (throttle, page) =
        page_of(limit("per-key", Gcra::new(Rate::per_second(3)).burst(3)).by(Header::new("x-key")));
    send(&throttle, "ada").await;
    assert_eq!(data(&page).await["tightest"][0]["resets_in_ms"], 334);
}

/// A request that leaves more than was noted is noted when it has a turn.
#[tokio::test(start_paused = true)]
async fn key_that_has_more_left_again_is_shown_so_after_some_of_its_requests() {
    let clock = ManualClock::default();
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    let (throttle, page) = observed(ThrottleLayer::builder(per_key(1_000)).backend(memory));
    for _ in 0..1_001 {
        send(&throttle, "ada").await;
    }
    for n in 0..5_000 {
        send(&throttle, &format!("tight-{}", n % 5)).await;
    }
    sleep(SECOND).await;
    assert_eq!(tightest(&data(&page).await), [(0, 1_000); 6]);
    // Half of it is left again, and the other keys keep requests many.
    clock.advance(1_800 * SECOND);
    for n in 0..5_000_u64 {
        send(&throttle, if n % 20 == 0 { "ada" } else { "loose" }).await;
    }
    sleep(SECOND).await;
    let found = tightest(&data(&page).await);
    assert!(
        found.iter().any(|(left, _)| (250..500).contains(left)),
        "{found:?}"
    );
}

/// Parameters of a key's own hold other units than any tier.
#[tokio::test(start_paused = true)]
async fn key_with_parameters_of_its_own_is_shown_with_its_units() {
    let plan = || {
        crate::plans("plan", [("free", Gcra::new(Rate::per_hour(10)))])
            .by(Header::new("x-key"))
            .lookup(|key: String| async move {
                let own = key
                    .parse()
                    .ok()
                    .map(|count| Gcra::new(Rate::per_hour(count)));
                own.map(Tier::own)
            })
            .unknown("free")
    };
    let total = limit("total", Gcra::new(Rate::per_hour(100_000))).by(Constant);
    for limits in [LimitTree::from(plan()), all((plan(), total))] {
        let (throttle, page) = page_of(limits);
        for _ in 0..3_000 {
            send(&throttle, "2000").await;
        }
        for n in 0..2_000 {
            send(&throttle, ["500", "loose"][n % 2]).await;
        }
        sleep(SECOND).await;
        let found = tightest(&data(&page).await);
        for key in [(0, 2_000), (0, 500), (0, 10)] {
            assert!(found.contains(&key), "{key:?} of {found:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn page_shows_the_offenders_that_it_is_given() {
    let offenders = Offenders::new().showing(|_, _| Some("a text".to_owned()));
    let page = Page::new().offenders(&offenders);
    let throttle = builder_of(per_key(1))
        .observe(page.clone())
        .observe(offenders.clone())
        .build()
        .unwrap();
    for _ in 0..6 {
        send(&throttle, "ada").await;
    }
    let found = data(&page.router()).await;
    let digest = offenders
        .digest(&Key::builder().bytes(b"ada").finish())
        .unwrap();
    let expected = json!([
        {"policy": "per-key", "key": format!("{digest:016x}"), "refused": 5, "shown": "a text"}
    ]);
    assert_eq!(found["offenders"], expected, "each refusal counts once");
    assert_eq!(found["tightest"][0]["key"], expected[0]["key"]);
}

#[tokio::test(start_paused = true)]
async fn seconds_older_than_two_minutes_are_gone() {
    let (throttle, page) = page_of(per_key(1));
    send(&throttle, "ada").await;
    for (seconds, expected) in [(1, 1), (119, 1), (1, 0), (1_000, 0)] {
        advance(seconds * SECOND).await;
        let data = data(&page).await;
        let admitted: Vec<_> = data["requests"]["admitted"].as_array().unwrap().clone();
        assert_eq!(
            admitted.iter().filter_map(Value::as_u64).sum::<u64>(),
            expected
        );
        assert!(admitted.len() <= 120);
        assert_eq!(data["outcomes"]["admitted"], 1, "since the start");
    }
    assert_eq!(data(&page).await["decided_by"]["decisions"]["store"], 0);
}

#[tokio::test(start_paused = true)]
async fn hostile_keys_do_not_grow_the_page() {
    let (throttle, page) = page_of(per_key(1));
    for n in 0..50_000 {
        for _ in 0..2 {
            send(&throttle, &format!("</script><script>alert({n})\u{20}")).await;
        }
    }
    advance(SECOND).await;
    let json = text(&page, "/data.json").await;
    let data: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (
            data["outcomes"]["admitted"].as_u64(),
            data["outcomes"]["refused"].as_u64()
        ),
        (Some(50_000), Some(50_000))
    );
    assert_eq!(
        (
            data["tightest"].as_array().unwrap().len(),
            data["offenders"].as_array().unwrap().len()
        ),
        (10, 10)
    );
    assert!(json.len() < 4_000, "{}", json.len());
    assert!(!json.contains("script"), "law 11: no key as text");
}

#[tokio::test(start_paused = true)]
async fn permits_are_counted_while_they_are_held() {
    let (throttle, page) = page_of(all((
        per_key(100),
        limit("in-flight", InFlight::new(2)).by(Constant),
    )));
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::from("held"))));
    let service = throttle.layer(inner);
    let ask = async || {
        service
            .clone()
            .oneshot(Request::get("/").header("x-key", "ada").body(()).unwrap())
            .await
            .unwrap()
    };
    let permits = async || {
        advance(SECOND).await;
        let permits = data(&page).await["permits"][0].clone();
        ["taken", "most_taken", "refused"].map(|field| permits[field].as_u64().unwrap())
    };
    let (first, second, third) = (ask().await, ask().await, ask().await);
    assert_eq!(third.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(permits().await, [2, 2, 1]);
    drop(first);
    assert_eq!(permits().await, [1, 2, 1]);
    advance(200 * SECOND).await;
    assert_eq!(
        permits().await,
        [1, 1, 0],
        "the other one was taken long ago, and is still held"
    );
    drop(second);
    assert_eq!(permits().await, [0, 0, 0]);
    assert_eq!(data(&page).await["outcomes"]["no_permit"], 1);
}

#[tokio::test(start_paused = true)]
async fn queue_shows_who_waits_and_how_long_at_most() {
    let limits = limit("queued", Gcra::new(Rate::per_second(1)).burst(1))
        .by(Constant)
        .wait_up_to(10 * SECOND);
    let (throttle, page) = observed(ThrottleLayer::builder(limits).backend(tokio_memory()));
    let queue = async || {
        let data = data(&page).await;
        (
            data["policies"][0]["queued"].clone(),
            data["policies"][0]["longest_wait_ms"].clone(),
        )
    };
    let sending = (0..3).map(|_| {
        let throttle = throttle.clone();
        tokio::spawn(async move { send(&throttle, "ada").await })
    });
    let sending: Vec<_> = sending.collect();
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(queue().await, (json!(2), json!(0)));
    for sent in sending {
        assert_eq!(sent.await.unwrap(), StatusCode::OK);
    }
    advance(SECOND).await;
    assert_eq!(queue().await, (json!(0), json!(2_000)));
}

/// Memory that goes by the runtime's clock.
fn tokio_memory() -> MemoryBackend<impl throttle_core::Clock> {
    #[derive(Clone, Debug)]
    struct PausedClock(Instant);
    impl throttle_core::Clock for PausedClock {
        fn now(&self) -> throttle_core::Timestamp {
            throttle_core::Timestamp::from_micros(
                1_000_000 + i64::try_from(self.0.elapsed().as_micros()).unwrap(),
            )
        }
    }
    MemoryBackend::builder()
        .clock(PausedClock(Instant::now()))
        .build()
}

/// A page, and what reports requests to it.
struct Observing {
    page: Page,
    layer: ThrottleLayer<MemoryBackend<ManualClock>>,
    observer: Arc<dyn Observer>,
}

impl Observing {
    fn new(page: Page) -> Self {
        let layer = layer_of(per_key(4));
        let info = layer.current.with(|shared| shared.version.info().clone());
        Self {
            observer: page.built(&info, None).unwrap(),
            page,
            layer,
        }
    }

    fn report(&self, outcome: Outcome<'_>, decision: Option<&Decision>, calls: &[Call]) {
        let (parts, ()) = Request::new(()).into_parts();
        self.layer.current.with(|shared| {
            self.observer.decided(&Event {
                outcome,
                decision,
                parts: &parts,
                near: &[],
                set: RequestSet {
                    policies: MemoryBackend::<ManualClock>::set(&shared.prepared).policies(),
                    calls,
                    indices: &[0, 1, 2, 3],
                },
                layer: shared.version.info(),
            });
        });
    }
}

fn read(rendered: &PageData) -> Value {
    serde_json::from_slice(&rendered.json()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn page_shows_who_decides_and_since_when() {
    let observing = Observing::new(Page::new());
    let rendered = observing.page.rendered();
    let calls = [Call::from(throttle_core::Key::from("ada"))];
    let decide_by = |kind: Option<BackendErrorKind>| {
        let decided = match kind {
            Some(kind) => Decision::open(&calls, kind),
            None => Decision::not_limited(1),
        };
        observing.report(Outcome::Admitted, Some(&decided), &calls);
    };
    decide_by(None);
    advance(SECOND).await;
    assert_eq!(
        read(&rendered)["decided_by"]["now"],
        json!(null),
        "no limit applied"
    );
    decide_by(Some(BackendErrorKind::Timeout));
    advance(SECOND).await;
    let error = BackendError::new(BackendErrorKind::Suspended);
    observing.report(Outcome::FailedClosed(&error), None, &[]);
    observing.report(
        Outcome::FailedOpen(&error),
        Some(&Decision::open(&calls, error.kind())),
        &calls,
    );
    observing.observer.happened(&Activity::Answered {
        after: 7 * SECOND / 1_000,
        failed: None,
    });
    observing.observer.happened(&Activity::Answered {
        after: 3 * SECOND,
        failed: Some(BackendErrorKind::Timeout),
    });
    advance(SECOND).await;
    let data = read(&rendered);
    assert_eq!(
        data["decided_by"],
        json!({
            "now": "closed",
            "decisions": {"store": 0, "local": 0, "open": 2, "closed": 1},
            "changes": [
                {"seconds_ago": 1, "from": "open", "to": "closed", "why": "suspended"},
                {"seconds_ago": 2, "from": null, "to": "open", "why": "timeout"}
            ]
        })
    );
    assert_eq!(
        data["store"],
        json!({"answers": 1, "failures": 1, "slowest_ms": 7})
    );
    assert_eq!(
        data["requests"],
        json!({"admitted": [1, 1, 1], "refused": [0, 0, 1]})
    );
    assert_eq!(
        data["policies"][0]["admitted"],
        json!([0, 0, 0]),
        "open limits admit nothing: they are skipped"
    );
}

#[tokio::test(start_paused = true)]
async fn data_is_written_once_a_second_however_many_read_it() {
    let written = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&written);
    let mut page = Page::new();
    let flips = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Flips::default()
    };
    page.candidates.push(("v2".to_owned(), Arc::new(flips)));
    let rendered = page.rendered();
    for second in 1..=3 {
        for _ in 0..1_000 {
            rendered.json();
            rendered.event();
        }
        assert_eq!(written.load(Ordering::Relaxed), second);
        advance(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn events_come_once_a_second_with_the_data_and_end_after_a_while() {
    let (throttle, page) = page_of(per_key(1));
    let (_, headers, mut body) = get(&page, "/events").await;
    assert_eq!(headers[CONTENT_TYPE], "text/event-stream");
    let (started, mut came) = (Instant::now(), Vec::new());
    while let Some(frame) = body.frame().await {
        let event = String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap();
        let json = event
            .strip_prefix("retry: 1000\ndata: ")
            .and_then(|event| event.strip_suffix("\n\n"))
            .unwrap();
        assert_eq!(json, text(&page, "/data.json").await);
        let data: Value = serde_json::from_str(json).unwrap();
        came.push((
            started.elapsed().as_secs(),
            data["outcomes"]["admitted"].as_u64().unwrap(),
        ));
        send(&throttle, &came.len().to_string()).await;
    }
    assert_eq!(came, (0..15).map(|n| (n, n)).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_was_slow_gets_one_event_and_waits_a_second_for_the_next() {
    let (_throttle, page) = page_of(per_key(1));
    let (_, _, mut body) = get(&page, "/events").await;
    let mut came = Vec::new();
    let started = Instant::now();
    for pause in [0, 0, 10, 0, 0] {
        advance(pause * SECOND + pause * SECOND / 20).await;
        body.frame().await.unwrap().unwrap();
        came.push(started.elapsed().as_millis() / 500);
    }
    assert_eq!(came, [0, 2, 23, 25, 27], "in half seconds");
}

/// A line break would end the event.
#[tokio::test(start_paused = true)]
async fn text_of_keys_stays_inside_its_event() {
    let text = "a\n\ndata: {}\r\u{2028}\"";
    let offenders = Offenders::new().showing(move |_, _| Some(text.to_owned()));
    let page = Page::new().offenders(&offenders);
    let throttle = builder_of(per_key(1))
        .observe(page.clone())
        .observe(offenders)
        .build()
        .unwrap();
    for _ in 0..2 {
        send(&throttle, "ada").await;
    }
    let rendered = page.rendered();
    let event = String::from_utf8(rendered.event().to_vec()).unwrap();
    assert_eq!(event.matches(['\n', '\r']).count(), 3);
    assert_eq!(read(&rendered)["offenders"][0]["shown"], text);
}

#[tokio::test(start_paused = true)]
async fn responses_are_not_stored_and_say_what_they_may_do() {
    let (_throttle, page) = page_of(per_key(1));
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/data.json", "application/json"),
        ("/events", "text/event-stream"),
    ] {
        let (status, headers, _) = get(&page, path).await;
        assert_eq!(
            (status, &headers[CONTENT_TYPE]),
            (
                StatusCode::OK,
                &http::HeaderValue::from_static(content_type)
            )
        );
        let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers[CACHE_CONTROL], "no-store");
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(headers[REFERRER_POLICY], "no-referrer");
        assert_eq!(headers["cross-origin-resource-policy"], "same-origin");
        assert_eq!(
            headers["x-accel-buffering"], "no",
            "a proxy would hold events back"
        );
    }
    assert_eq!(get(&page, "/other").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn page_is_found_where_it_is_nested() {
    let page = Page::new().router::<u8>();
    let app: Router = Router::new().nest("/admin/limits", page).with_state(7);
    for path in [
        "/admin/limits",
        "/admin/limits/data.json",
        "/admin/limits/events",
    ] {
        assert_eq!(get(&app, path).await.0, StatusCode::OK, "{path}");
    }
    let page = Page::new().router();
    let app: Router = Router::new().nest_service("/admin/limits", page);
    assert_eq!(
        get(&app, "/admin/limits/").await.0,
        StatusCode::OK,
        "as a service, with a slash at the end"
    );
}

#[tokio::test(start_paused = true)]
async fn key_is_shown_with_what_its_class_can_have() {
    let observing = Observing::new(Page::new());
    let calls = [Call::from(Key::from("ada")).reserving(2)];
    let decision = observing
        .layer
        .current
        .with(|shared| shared.backend.decide_now(&shared.prepared, &calls));
    observing.report(Outcome::Admitted, Some(&decision), &calls);
    assert_eq!(tightest(&read(&observing.page.rendered())), [(1, 2)]);
}
