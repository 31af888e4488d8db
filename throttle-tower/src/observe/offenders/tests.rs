use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use throttle_core::{Gcra, Key, KeyPart, PolicyName, Rate};
use tokio::runtime;
use tokio::time::{advance, sleep};
use tower::{Layer, ServiceExt, service_fn};

use super::Offenders;
use crate::limit::{IntoLimitTree, Limit};
use crate::{Constant, Header, InFlight, ThrottleLayer, all, limit};

fn per_key(name: &str) -> Limit {
    limit(name, Gcra::new(Rate::per_day(1)).burst(1)).by(Header::new("x-api-key"))
}

fn tracking() -> (ThrottleLayer, Offenders) {
    tracked(per_key("per-key"), Offenders::new())
}

fn tracked(limits: impl IntoLimitTree, offenders: Offenders) -> (ThrottleLayer, Offenders) {
    let layer = ThrottleLayer::builder(limits)
        .observe(offenders.clone())
        .build()
        .unwrap();
    (layer, offenders)
}

async fn send(layer: &ThrottleLayer, key: Option<&str>) -> StatusCode {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let mut request = Request::new(());
    if let Some(key) = key {
        request
            .headers_mut()
            .insert("x-api-key", key.parse().unwrap());
    }
    layer.layer(inner).oneshot(request).await.unwrap().status()
}

/// Sends requests of a key until so many were refused.
async fn refuse(layer: &ThrottleLayer, key: Option<&str>, times: usize) {
    let mut refused = 0;
    while refused < times {
        refused += usize::from(send(layer, key).await == StatusCode::TOO_MANY_REQUESTS);
    }
}

fn counts(offenders: &Offenders) -> Vec<u64> {
    offenders
        .list(20)
        .iter()
        .map(|offender| offender.refused)
        .collect()
}

/// SplitMix64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Draws the ranks from 0 with the probabilities of Zipf's law.
struct Zipf(Vec<u64>);

impl Zipf {
    #[expect(
        clippy::float_arithmetic,
        reason = "weights of a test, the same on every machine up to one part in 2^40"
    )]
    fn new(keys: u32) -> Self {
        let weight = |rank: u32| (f64::from(rank).powf(-1.1) * f64::from(1 << 30)) as u64;
        let sums = (1..=keys).scan(0, |sum, rank| {
            *sum += weight(rank);
            Some(*sum)
        });
        Self(sums.collect())
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let at = random.next() % self.0.last().unwrap();
        self.0.partition_point(|sum| *sum <= at) as u64
    }
}

/// Counts so many refusals of 100,000 keys by Zipf's law, and after each of them so many of keys
/// that are refused once. Returns how many of the true top 20 are listed among the first 20.
fn found_of_top_20(seed: u64, refusals: u64, one_shots: u64) -> usize {
    let (zipf, mut random) = (Zipf::new(100_000), Random(seed));
    let offenders = Offenders::new().showing(|_, key| match key.expose_parts().next()? {
        KeyPart::Number(number) => Some(number.to_string()),
        _ => None,
    });
    let mut exact = HashMap::new();
    for n in 0..refusals {
        let rank = zipf.draw(&mut random);
        *exact.entry(rank).or_insert(0_u64) += 1;
        count(&offenders, rank, 1);
        for shot in 0..one_shots {
            count(&offenders, 1_000_000 + n * one_shots + shot, 1);
        }
    }
    let listed = offenders.list(20);
    assert_eq!(listed.len(), 20);
    assert!(listed.is_sorted_by(|one, next| one.refused >= next.refused));
    let mut all: Vec<u64> = exact.values().copied().collect();
    all.sort_unstable();
    let least_of_top_20 = all[all.len() - 20];
    let is_found = |offender: &&super::Offender| {
        let rank: u64 = offender.shown.as_ref().unwrap().parse().unwrap();
        let exact = exact.get(&rank).copied().unwrap_or(1);
        assert!(
            offender.refused <= exact,
            "an estimate is too high: {} of {exact}",
            offender.refused
        );
        exact >= least_of_top_20
    };
    listed.iter().filter(is_found).count()
}

const SEEDS: [u64; 2] = [1, 2];

#[tokio::test(start_paused = true)]
async fn list_holds_19_of_the_true_top_20_of_a_zipf_distribution() {
    for seed in SEEDS {
        let found = found_of_top_20(seed, 200_000, 0);
        assert!(found >= 19, "seed {seed}: {found}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_holds_19_of_the_true_top_20_beside_as_many_single_refusals() {
    for seed in SEEDS {
        let found = found_of_top_20(seed, 200_000, 1);
        assert!(found >= 19, "seed {seed}: {found}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_counts_refusals_by_key_and_policy() {
    let limits = all([
        per_key("a"),
        per_key("b").cost(|parts: &Parts| if parts.uri.path() == "/" { 1 } else { 2 }),
    ]);
    let (layer, offenders) = tracked(limits, Offenders::new());
    refuse(&layer, Some("ada"), 3).await;
    refuse(&layer, Some("bob"), 5).await;
    assert_eq!(counts(&offenders), [5, 3], "admitted requests do not count");
    let listed = offenders.list(1);
    assert_eq!(
        (listed.len(), listed[0].policy.as_str(), listed[0].refused),
        (1, "a", 5)
    );
    assert!(offenders.list(0).is_empty());

    let bob = listed[0].digest.unwrap();
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let never = Request::get("/never")
        .header("x-api-key", "bob")
        .body(())
        .unwrap();
    layer.layer(inner).oneshot(never).await.unwrap();
    let listed = offenders.list(20);
    assert_eq!(
        listed
            .iter()
            .map(|offender| offender.policy.as_str())
            .collect::<Vec<_>>(),
        ["a", "a", "b"]
    );
    assert_eq!(
        listed[2].digest,
        Some(bob),
        "a key has one digest in all policies"
    );
    assert_eq!(listed[2].to_string(), format!("b#{bob:016x}"));
}

#[tokio::test(start_paused = true)]
async fn refusals_are_forgotten_after_one_to_two_minutes() {
    let (layer, offenders) = tracking();
    advance(Duration::from_secs(30)).await;
    refuse(&layer, Some("ada"), 3).await;
    advance(Duration::from_secs(60)).await;
    assert_eq!(counts(&offenders), [3], "in the minute before");
    refuse(&layer, Some("ada"), 1).await;
    refuse(&layer, Some("bob"), 2).await;
    assert_eq!(counts(&offenders), [4, 2], "both minutes count");
    advance(Duration::from_millis(29_999)).await;
    assert_eq!(counts(&offenders), [4, 2]);
    advance(Duration::from_millis(1)).await;
    assert_eq!(counts(&offenders), [2, 1], "the first minute is forgotten");
    advance(Duration::from_secs(60)).await;
    assert!(counts(&offenders).is_empty());

    refuse(&layer, Some("ada"), 1).await;
    advance(Duration::from_secs(1_000)).await;
    assert!(counts(&offenders).is_empty(), "after a pause, too");
}

/// So that the list does not jump from one reading to the next.
#[tokio::test(start_paused = true)]
async fn keys_that_were_refused_equally_often_are_listed_in_a_fixed_order() {
    let (layer, offenders) = tracking();
    for key in 0..12 {
        refuse(&layer, Some(&format!("key {key}")), 1).await;
    }
    let digests: Vec<_> = offenders
        .list(20)
        .into_iter()
        .map(|offender| offender.digest)
        .collect();
    assert!(digests.len() == 12 && digests.is_sorted(), "{digests:?}");
}

#[tokio::test(start_paused = true)]
async fn law_11_list_contains_no_raw_key() {
    let (layer, offenders) = tracking();
    refuse(&layer, Some("sk-live-wxyz"), 2).await;
    let listed = offenders.list(20);
    assert_eq!((listed.len(), &listed[0].shown), (1, &None));
    for text in [
        format!("{listed:?}"),
        listed[0].to_string(),
        format!("{layer:?}"),
    ] {
        // No digit of a digest in base 16 is one of these letters.
        assert!(!text.contains("wxyz"), "{text}");
    }
    let (other, others) = tracking();
    refuse(&other, Some("sk-live-wxyz"), 2).await;
    assert_ne!(
        listed[0].digest,
        others.list(1)[0].digest,
        "the digest is keyed by a secret of the list"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_key_are_listed_as_missing() {
    let (layer, offenders) = tracking();
    refuse(&layer, None, 2).await;
    refuse(&layer, Some("ada"), 1).await;
    let listed = offenders.list(20);
    assert_eq!(
        (listed[0].to_string().as_str(), listed[0].digest),
        ("per-key#missing", None)
    );
    assert!(listed[1].digest.is_some());
}

#[tokio::test(start_paused = true)]
async fn only_refusals_by_limits_are_listed() {
    let limits = all([
        per_key("per-key").into(),
        crate::LimitTree::from(limit("in-flight", InFlight::new(1)).by(Constant)),
    ]);
    let (layer, offenders) = tracked(limits, Offenders::new());
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let held = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    assert_eq!(
        send(&layer, Some("ada")).await,
        StatusCode::SERVICE_UNAVAILABLE
    );
    drop(held);
    assert!(offenders.list(20).is_empty());
}

#[tokio::test(start_paused = true)]
async fn services_clones_and_layers_with_the_same_observer_count_together() {
    let (layer, offenders) = tracking();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(()))
    }));
    refuse(&layer, Some("ada"), 1).await;
    let elsewhere = ThrottleLayer::builder(per_key("per-key"))
        .observe(offenders.clone())
        .build()
        .unwrap();
    refuse(&elsewhere, Some("ada"), 1).await;
    refuse(&service.to_layer(), Some("ada"), 1).await;
    assert_eq!(counts(&offenders), [3]);
}

#[test]
fn law_14_refusal_does_not_wait_for_the_counts() {
    let (layer, offenders) = tracking();
    let held = offenders.0.recent.lock().unwrap();
    let (done, is_done) = mpsc::channel();
    let calling = layer.clone();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(refuse(&calling, Some("ada"), 3));
        done.send(()).unwrap();
    });
    is_done
        .recv_timeout(Duration::from_secs(30))
        .expect("the requests waited for a lock that is held");
    drop(held);
    assert_eq!((offenders.uncounted(), counts(&offenders).len()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn keys_are_shown_as_the_text_of_the_users_function() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let offenders = Offenders::new().showing(move |limit, key| {
        counter.fetch_add(1, Ordering::Relaxed);
        match key.expose_parts().next()? {
            KeyPart::Bytes(b"secret") => None,
            KeyPart::Bytes(bytes) => Some(format!("{limit}: {}", String::from_utf8_lossy(bytes))),
            _ => None,
        }
    });
    let (layer, offenders) = tracked(per_key("per-key"), offenders);
    for (key, times) in [("ada", 4), ("secret", 3), ("bob", 2)] {
        refuse(&layer, Some(key), times).await;
    }
    let shown = || {
        offenders
            .list(20)
            .into_iter()
            .map(|offender| offender.shown)
            .collect::<Vec<_>>()
    };
    let expected = [
        Some("per-key: ada".to_owned()),
        None,
        Some("per-key: bob".to_owned()),
    ];
    assert_eq!(shown(), expected);
    assert_eq!(asked.load(Ordering::Relaxed), 3, "once for each key");
    advance(Duration::from_secs(61)).await;
    assert_eq!(shown(), expected, "as long as the key is listed");
}

#[tokio::test(start_paused = true)]
async fn text_of_a_key_is_cut_to_64_bytes_of_whole_characters() {
    let show = |_: &str, _: &Key| Some("ä".repeat(10) + "a" + &"ä".repeat(1_000));
    let (layer, offenders) = tracked(per_key("per-key"), Offenders::new().showing(show));
    refuse(&layer, Some("ada"), 1).await;
    let shown = offenders.list(1).remove(0).shown.unwrap();
    assert_eq!(shown, "ä".repeat(10) + "a" + &"ä".repeat(21));
}

#[tokio::test(start_paused = true)]
async fn function_that_shows_a_key_may_read_the_list() {
    let reads: Arc<OnceLock<Offenders>> = Arc::default();
    let read = Arc::clone(&reads);
    let show = move |_: &str, _: &Key| Some(read.get()?.list(20).len().to_string());
    let (layer, offenders) = tracked(per_key("per-key"), Offenders::new().showing(show));
    reads.set(offenders.clone()).unwrap();
    refuse(&layer, Some("ada"), 2).await;
    assert_eq!(offenders.list(1)[0].shown.as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn list_and_its_texts_are_bounded() {
    let offenders = Offenders::new().showing(|_, _| Some("text".to_owned()));
    for minute in 0..2 {
        advance(Duration::from_secs(60 * minute)).await;
        for n in 0..20_000_u64 {
            // Keys that are refused more and more displace the others.
            count(&offenders, n + minute * 20_000, 1 + n / 2_000);
        }
    }
    assert_eq!(offenders.list(1_000).len(), 128);
    assert!(offenders.0.recent.lock().unwrap().keys_listed() <= 2 * 128);
}

/// Counts so many refusals of a key by one thread.
fn count(offenders: &Offenders, key: u64, times: u64) {
    let limit = PolicyName::new("per-key").unwrap();
    (0..times).for_each(|_| offenders.count(&limit, &Key::from(key)));
}

fn refusals(offenders: &Offenders) -> Vec<u64> {
    offenders
        .list(20)
        .iter()
        .map(|offender| offender.refused)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn refusals_belong_to_their_minute_however_many_came_before() {
    let offenders = Offenders::new();
    for minute in 0..5 {
        count(&offenders, 1, 10_000);
        sleep(Duration::from_secs(60)).await;
        count(&offenders, 1, 7);
        count(&offenders, 2, 3);
        assert_eq!(refusals(&offenders), [10_007, 3], "{minute}");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(refusals(&offenders), [7, 3], "{minute}");
        sleep(Duration::from_secs(60)).await;
        assert!(refusals(&offenders).is_empty(), "{minute}");
    }
}

#[test]
fn no_refusal_is_lost_or_counted_twice_while_the_list_is_read() {
    const EACH: u64 = 2_000;
    for round in 0..200 {
        let (offenders, done) = (Offenders::new(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for thread in 0..3 {
                let (offenders, done) = (&offenders, &done);
                scope.spawn(move || {
                    // Two keys of all threads, and some of its own that want the same slots.
                    for n in 0..EACH {
                        count(
                            offenders,
                            if n % 4 == 3 {
                                100 * thread + n % 97
                            } else {
                                1_000 + n % 2
                            },
                            1,
                        );
                    }
                    done.fetch_add(1, Ordering::Release);
                });
            }
            let mut before = 0;
            while done.load(Ordering::Acquire) < 3 {
                let now = offenders
                    .list(128)
                    .iter()
                    .map(|key| key.refused)
                    .max()
                    .unwrap_or(0);
                assert!(now >= before, "{round}: {now} after {before}");
                before = now;
            }
        });
        let counted: u64 = offenders.list(128).iter().map(|key| key.refused).sum();
        assert!(
            counted + offenders.uncounted() <= 3 * EACH,
            "{round}: {counted}"
        );
        let listed: u64 = counted + offenders.uncounted();
        // Of some 290 keys, the 128 that are listed have nearly all.
        assert!(listed >= 3 * EACH * 3 / 4, "{round}: {listed}");
    }
}
