mod own;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Request};
use throttle_core::{Gcra, IntoAlgorithm, Key, LeakyBucket, Rate};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::tier_lookup::CachedTierLookup;
use super::{Tier, plans};
use crate::limit::{FoundKey, FoundTier, LookedUp, LookupResult, TierLookup};
use crate::{Header, Limit, ThrottleLayer};

fn parts(identity: &str) -> Parts {
    Request::builder()
        .header("x-api-key", identity)
        .body(())
        .unwrap()
        .into_parts()
        .0
}

/// Counts lookups, and holds them until the test sets their result.
#[derive(Default)]
struct FakeLookup {
    asked: AtomicUsize,
    open: Notify,
    answer: Mutex<Option<Result<Option<&'static str>, ()>>>,
}

impl FakeLookup {
    fn answers(&self, answer: Result<Option<&'static str>, ()>) {
        *self.answer.lock().unwrap() = Some(answer);
        self.open.notify_waiters();
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn lookup_at(fake: &Arc<FakeLookup>, entries: usize, keep_for: Duration) -> CachedTierLookup {
    let fake = Arc::clone(fake);
    let mut built = plans("p", tiers())
        .by(Header::new("x-api-key"))
        .lookup(move |_| {
            let fake = Arc::clone(&fake);
            async move {
                fake.asked.fetch_add(1, Ordering::SeqCst);
                loop {
                    let opened = fake.open.notified();
                    let answer = *fake.answer.lock().unwrap();
                    match answer {
                        Some(answer) => return answer,
                        None => opened.await,
                    }
                }
            }
        });
    built.lookup.set_cache(entries, keep_for);
    built.lookup
}

fn tiers() -> [(&'static str, Gcra); 3] {
    [("free", 60), ("pro", 600), ("internal", 6_000)]
        .map(|(tier, count)| (tier, Gcra::new(Rate::per_minute(count))))
}

fn later(found: FoundKey) -> LookedUp {
    match found {
        FoundKey::Later { key, .. } => key,
        FoundKey::Now(..) => panic!("known at once"),
    }
}

async fn tier(lookup: &CachedTierLookup, identity: &str) -> u8 {
    match lookup.find(&parts(identity)) {
        FoundKey::Now(_, tier) => tier.number(),
        FoundKey::Later { key, .. } => key.await.1.number(),
    }
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn concurrent_requests_of_one_identity_share_a_lookup() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, LONG);
    let waiting: Vec<_> = (0..64)
        .map(|_| tokio::spawn(later(lookup.find(&parts("ada")))))
        .collect();
    while fake.asked() == 0 {
        tokio::task::yield_now().await;
    }
    fake.answers(Ok(Some("pro")));
    for one in waiting {
        let (key, tier) = one.await.unwrap();
        assert_eq!(
            (key, tier.number()),
            (Some(Key::builder().bytes(b"ada").finish()), 1)
        );
    }
    assert_eq!(fake.asked(), 1);
    assert!(
        matches!(
            lookup.find(&parts("ada")),
            FoundKey::Now(Some(_), FoundTier::Numbered(1))
        ),
        "from now on without waiting"
    );
}

#[tokio::test]
async fn lookup_goes_on_for_the_requests_that_still_wait() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, LONG);
    // The request that started the lookup and the one that polled it last are both dropped.
    let mut first = later(lookup.find(&parts("ada")));
    let second = tokio::spawn(later(lookup.find(&parts("ada"))));
    let third = tokio::spawn(later(lookup.find(&parts("ada"))));
    assert!(polled_once(&mut first).await.is_none());
    tokio::task::yield_now().await;
    assert!(polled_once(&mut first).await.is_none());
    drop(first);
    third.abort();
    fake.answers(Ok(Some("internal")));
    let found = tokio::time::timeout(Duration::from_secs(5), second)
        .await
        .expect("the lookup goes on")
        .unwrap();
    assert_eq!((found.1.number(), fake.asked()), (2, 1));
    // If all waiting requests are dropped, the next request starts another lookup.
    let other = later(lookup.find(&parts("bob")));
    drop(other);
    assert_eq!((tier(&lookup, "bob").await, fake.asked()), (2, 2));
}

/// The lookup's timers are those of the runtime that polled it first.
#[test]
fn law_15_lookup_of_a_runtime_that_is_not_driven_holds_up_no_request() {
    let [stands, driven] = [0, 1].map(|_| {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    });
    let fake = Arc::new(FakeLookup::default());
    let mut lookup = lookup_at(&fake, 10, LONG);
    (lookup.deadline, lookup.max_lookups) = (Duration::from_millis(30), 1);
    let mut stuck = later(lookup.find(&parts("ada")));
    assert!(stands.block_on(polled_once(&mut stuck)).is_none());
    driven.block_on(async {
        let joined =
            tokio::time::timeout(Duration::from_secs(5), later(lookup.find(&parts("ada")))).await;
        assert_eq!(
            joined.expect("its wait is bounded").1.number(),
            0,
            "the default"
        );
        fake.answers(Ok(Some("pro")));
        assert_eq!(tier(&lookup, "bob").await, 1, "there is room for a lookup");
        assert_eq!(
            (tier(&lookup, "ada").await, fake.asked()),
            (1, 3),
            "another lookup of the same identity"
        );
    });
}

/// Polls once.
async fn polled_once(future: &mut LookedUp) -> Option<u8> {
    std::future::poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready((_, tier)) => Some(tier.number()),
            Poll::Pending => None,
        })
    })
    .await
}

/// A lookup that panics when it is called, or later, as long as the flag is set, and how often it
/// was called.
fn panicking(later: bool) -> (CachedTierLookup, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let (panics, asked) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let shared = (Arc::clone(&panics), Arc::clone(&asked));
    let lookup = move |_| {
        shared.1.fetch_add(1, Ordering::SeqCst);
        let panics = Arc::clone(&shared.0);
        assert!(
            later || !panics.load(Ordering::SeqCst),
            "a lookup that panics at once"
        );
        async move {
            tokio::task::yield_now().await;
            assert!(!panics.load(Ordering::SeqCst), "a lookup that panics later");
            Some("pro")
        }
    };
    (
        plans("p", tiers())
            .by(Header::new("x-api-key"))
            .lookup(lookup)
            .lookup,
        panics,
        asked,
    )
}

#[tokio::test(start_paused = true)]
async fn lookup_that_panics_has_failed_and_is_remembered_as_such() {
    for later_on in [false, true] {
        let (lookup, panics, asked) = panicking(later_on);
        let waiting: Vec<_> = (0..4)
            .map(|_| tokio::spawn(later(lookup.find(&parts("ada")))))
            .collect();
        for one in waiting {
            let (_, tier) = tokio::time::timeout(SOON, one)
                .await
                .expect("it does not wait")
                .expect("no panic");
            assert_eq!(tier.number(), 0, "the default");
        }
        for _ in 0..10 {
            assert_eq!(tier(&lookup, "ada").await, 0);
        }
        assert_eq!(
            (asked.load(Ordering::SeqCst), lookup.running()),
            (1, 0),
            "not again within a second"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        panics.store(false, Ordering::SeqCst);
        assert_eq!(tier(&lookup, "ada").await, 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        panics.store(true, Ordering::SeqCst);
        for _ in 0..10 {
            assert_eq!(tier(&lookup, "ada").await, 1, "the last known tier");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }
}

#[cfg(feature = "tracing")]
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

#[cfg(feature = "tracing")]
impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        event.record(
            &mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                self.0.lock().unwrap().push(format!("{value:?}"));
            },
        );
    }
}

#[cfg(feature = "tracing")]
#[tokio::test]
async fn lookup_that_panics_is_logged_once_a_minute_with_its_limit() {
    use tower::{Layer, ServiceExt};
    use tracing_subscriber::layer::SubscriberExt;

    let log = Log::default();
    let _listening =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    // While tests of other threads begin or cease to listen, an event may be missed.
    for _ in 0..100 {
        let lookup = |_| async { panic!("a lookup that panics") as Option<&'static str> };
        let per_user = plans("per-user", tiers())
            .by(Header::new("x-api-key"))
            .lookup(lookup)
            .unknown("free");
        let layer = ThrottleLayer::new(per_user).unwrap();
        for user in ["ada", "bob", "ada"] {
            let inner = tower::service_fn(async |_| {
                Ok::<_, std::convert::Infallible>(http::Response::new(()))
            });
            let request = Request::builder()
                .header("x-api-key", user)
                .body(())
                .unwrap();
            assert_eq!(
                layer.layer(inner).oneshot(request).await.unwrap().status(),
                200
            );
        }
        if !log.0.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        tracing::callsite::rebuild_interest_cache();
    }
    let expected = "a lookup of the limit \"per-user\" panicked and counts as failed. The last \
        known tier applies";
    assert_eq!(*log.0.lock().unwrap(), [expected]);
}

/// A lookup that notices its end when it is polled, and wakes no request for it, like a timer that
/// a new request finds expired before it fires.
fn silent_lookup(
    answer: impl Fn() -> &'static str + Send + Sync + 'static,
) -> (CachedTierLookup, Arc<AtomicBool>) {
    let (over, answer) = (Arc::new(AtomicBool::new(true)), Arc::new(answer));
    let is_over = Arc::clone(&over);
    let lookup = move |_| {
        let (is_over, answer) = (Arc::clone(&is_over), Arc::clone(&answer));
        std::future::poll_fn(move |_| match is_over.load(Ordering::SeqCst) {
            true => Poll::Ready(Some(answer())),
            false => Poll::Pending,
        })
    };
    let mut built = plans("p", tiers())
        .by(Header::new("x-api-key"))
        .lookup(lookup);
    built.lookup.set_cache(10, Duration::ZERO);
    (built.lookup, over)
}

const SOON: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn lookup_that_ends_in_one_requests_poll_wakes_the_others() {
    let (lookup, over) = silent_lookup(|| "pro");
    over.store(false, Ordering::SeqCst);
    let waiting: Vec<_> = (0..3)
        .map(|_| tokio::spawn(later(lookup.find(&parts("ada")))))
        .collect();
    tokio::task::yield_now().await;
    over.store(true, Ordering::SeqCst);
    assert_eq!(
        polled_once(&mut later(lookup.find(&parts("ada")))).await,
        Some(1)
    );
    for one in waiting {
        assert_eq!(
            tokio::time::timeout(SOON, one)
                .await
                .expect("it is woken")
                .unwrap()
                .1
                .number(),
            1
        );
    }
}

/// The first lookup is dropped with the request that has not fetched its result, while the second
/// one runs.
#[tokio::test]
async fn lookup_that_is_dropped_late_leaves_its_successor_shared() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, Duration::ZERO);
    let mut slow = later(lookup.find(&parts("ada")));
    assert!(polled_once(&mut slow).await.is_none());
    fake.answers(Ok(Some("pro")));
    assert_eq!((tier(&lookup, "ada").await, fake.asked()), (1, 1));
    *fake.answer.lock().unwrap() = None;
    let mut next = [0, 1].map(|_| later(lookup.find(&parts("ada"))));
    assert!(polled_once(&mut next[0]).await.is_none());
    drop(slow);
    assert!(polled_once(&mut next[1]).await.is_none());
    assert_eq!((fake.asked(), lookup.running()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn failed_lookup_is_repeated_after_a_second_and_not_before() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, LONG);
    fake.answers(Err(()));
    assert_eq!((tier(&lookup, "ada").await, fake.asked()), (0, 1));
    fake.answers(Ok(Some("pro")));
    tokio::time::advance(Duration::from_millis(999)).await;
    for _ in 0..5 {
        assert_eq!(
            (tier(&lookup, "ada").await, fake.asked()),
            (0, 1),
            "not with each request"
        );
    }
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!((tier(&lookup, "ada").await, fake.asked()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn failed_lookup_is_repeated_sooner_where_tiers_are_remembered_for_less() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, Duration::from_millis(100));
    fake.answers(Err(()));
    assert_eq!(tier(&lookup, "ada").await, 0);
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!((tier(&lookup, "ada").await, fake.asked()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn law_12_lookup_that_hangs_is_shared_until_its_deadline() {
    let fake = Arc::new(FakeLookup::default());
    let mut lookup = lookup_at(&fake, 10, LONG);
    lookup.deadline = Duration::from_millis(200);
    let begun = Instant::now();
    let mut waiting: Vec<_> = (0..32)
        .map(|_| tokio::spawn(later(lookup.find(&parts("ada")))))
        .collect();
    tokio::time::sleep(Duration::from_millis(150)).await;
    waiting.extend((0..32).map(|_| tokio::spawn(later(lookup.find(&parts("ada"))))));
    for one in waiting {
        assert_eq!(one.await.unwrap().1.number(), 0, "the stated tier");
    }
    assert_eq!(
        (begun.elapsed().as_millis(), fake.asked(), lookup.running()),
        (200, 1, 0)
    );
    // As after any failure, not at once again.
    assert_eq!((tier(&lookup, "ada").await, fake.asked()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn law_12_lookup_that_hangs_leaves_a_known_identity_in_its_last_tier() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, Duration::from_secs(60));
    fake.answers(Ok(Some("pro")));
    assert_eq!(tier(&lookup, "ada").await, 1);
    *fake.answer.lock().unwrap() = None;
    for asked in 2..5 {
        tokio::time::advance(Duration::from_secs(60)).await;
        let begun = Instant::now();
        assert_eq!((tier(&lookup, "ada").await, fake.asked()), (1, asked));
        assert_eq!(
            begun.elapsed(),
            Duration::from_secs(1),
            "the default deadline"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn law_13_lookup_beyond_the_bound_counts_as_failed_at_once() {
    let fake = Arc::new(FakeLookup::default());
    let mut lookup = lookup_at(&fake, 10, Duration::from_secs(60));
    lookup.max_lookups = 2;
    fake.answers(Ok(Some("pro")));
    assert_eq!(tier(&lookup, "ada").await, 1);
    tokio::time::advance(Duration::from_secs(60)).await;
    *fake.answer.lock().unwrap() = None;
    let mut hanging = ["one", "two"].map(|made_up| later(lookup.find(&parts(made_up))));
    for hanging in &mut hanging {
        assert!(polled_once(hanging).await.is_none());
    }
    assert_eq!((fake.asked(), lookup.running()), (3, 2));
    for _ in 0..100 {
        assert_eq!(
            polled_once(&mut later(lookup.find(&parts("ada")))).await,
            Some(1),
            "the last known tier"
        );
        assert_eq!(
            polled_once(&mut later(lookup.find(&parts("bob")))).await,
            Some(0),
            "the stated tier"
        );
    }
    assert_eq!(
        (fake.asked(), lookup.running()),
        (3, 2),
        "those cost no lookup"
    );
    assert!(
        polled_once(&mut later(lookup.find(&parts("one"))))
            .await
            .is_none(),
        "one under way is still shared"
    );
    drop(hanging);
    fake.answers(Ok(Some("internal")));
    assert_eq!(
        tier(&lookup, "bob").await,
        2,
        "the refusal was not remembered as a failed lookup"
    );
    assert_eq!(tier(&lookup, "ada").await, 2);
}

/// A request that is refused before its lookup starts takes no place from another request.
#[tokio::test]
async fn lookup_begins_when_it_is_waited_for() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, LONG);
    let waits = later(lookup.find(&parts("ada")));
    assert_eq!((fake.asked(), lookup.running()), (0, 0));
    fake.answers(Ok(Some("pro")));
    assert_eq!(tier(&lookup, "ada").await, 1);
    assert_eq!(
        (waits.await.1.number(), fake.asked()),
        (1, 1),
        "another request's lookup has ended meanwhile"
    );
}

#[tokio::test]
async fn identities_never_looked_up_share_a_budget_while_lookups_fail() {
    let fake = Arc::new(FakeLookup::default());
    let mut lookup = lookup_at(&fake, 100, Duration::ZERO);
    lookup.unknown.as_missing = true;
    let find = async |identity: &str| match lookup.find(&parts(identity)) {
        FoundKey::Now(key, tier) => (key, tier.number()),
        FoundKey::Later { key, .. } => {
            let (key, tier) = key.await;
            (key, tier.number())
        }
    };
    let own = |identity: &str| Some(Key::builder().bytes(identity.as_bytes()).finish());
    fake.answers(Ok(Some("pro")));
    assert_eq!(find("ada").await, (own("ada"), 1));
    fake.answers(Ok(None));
    assert_eq!(find("eve").await, (None, 0));
    fake.answers(Err(()));
    let (shared, tier) = find("made up").await;
    assert_eq!(tier, 0);
    assert!(
        shared.is_some() && shared != Some(Key::missing()),
        "not the budget of a missing key"
    );
    for n in 0..20 {
        assert_eq!(find(&n.to_string()).await, (shared.clone(), 0));
        // A failed lookup does not make an identity known.
        assert_eq!(find("made up").await, (shared.clone(), 0));
    }
    assert_eq!(
        find("ada").await,
        (own("ada"), 1),
        "the last tier and an own budget"
    );
    assert_eq!(find("eve").await, (None, 0), "still unknown");
    fake.answers(Ok(Some("pro")));
    assert_eq!(
        find("made up").await,
        (own("made up"), 1),
        "from the first lookup that succeeds"
    );
}

#[tokio::test]
async fn identities_never_looked_up_have_a_budget_each_if_unknown_ones_do() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 100, Duration::ZERO);
    fake.answers(Err(()));
    for identity in ["ada", "bob"] {
        let own = Key::builder().bytes(identity.as_bytes()).finish();
        assert_eq!(
            later(lookup.find(&parts(identity))).await,
            (Some(own), FoundTier::Numbered(0))
        );
    }
}

#[test]
fn plans_with_a_delaying_tier_are_an_error() {
    let queue = LeakyBucket::new(Rate::per_second(1)).max_wait(LONG);
    let tiers = [
        ("free", Gcra::new(Rate::per_minute(60)).into_algorithm()),
        ("pro", queue.into_algorithm()),
    ];
    let tiers = tiers.map(|(tier, algorithm)| (tier, algorithm.unwrap()));
    let delaying = plans("per-user", tiers)
        .by(Header::new("x-api-key"))
        .lookup(|_| async { None::<&str> });
    let error = ThrottleLayer::new(delaying.unknown("free"))
        .map(drop)
        .unwrap_err();
    assert_eq!(
        (error.policy(), error.field(), error.value()),
        (Some("per-user"), "algorithm", "leaky_bucket")
    );
}

/// A request without an identity, or with one that is not text, costs no lookup.
#[tokio::test]
async fn identity_that_is_missing_or_not_text_is_not_looked_up() {
    let fake = Arc::new(FakeLookup::default());
    let mut lookup = lookup_at(&fake, 10, LONG);
    lookup.unknown.tier = 2;
    let without_identity = Request::new(()).into_parts().0;
    assert!(matches!(
        lookup.find(&without_identity),
        FoundKey::Now(None, FoundTier::Numbered(2))
    ));
    let mut no_text = Request::new(());
    no_text
        .headers_mut()
        .insert("x-api-key", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    let no_text = no_text.into_parts().0;
    assert!(matches!(
        lookup.find(&no_text),
        FoundKey::Now(Some(_), FoundTier::Numbered(2))
    ));
    lookup.unknown.as_missing = true;
    assert!(
        matches!(
            lookup.find(&no_text),
            FoundKey::Now(None, FoundTier::Numbered(2))
        ),
        "like an unknown identity"
    );
    assert_eq!(fake.asked(), 0);
}

/// A lookup is in the table while a request waits for it, and not after that or after its end.
#[tokio::test]
async fn lookup_without_waiting_requests_leaves_nothing_behind() {
    let fake = Arc::new(FakeLookup::default());
    let lookup = lookup_at(&fake, 10, LONG);
    for identity in 0..100 {
        let mut given_up = later(lookup.find(&parts(&identity.to_string())));
        assert!(polled_once(&mut given_up).await.is_none());
        assert_eq!(lookup.running(), 1);
    }
    assert_eq!(lookup.running(), 0);
    fake.answers(Ok(Some("pro")));
    assert_eq!((tier(&lookup, "ada").await, lookup.running()), (1, 0));
}

#[test]
fn error_of_a_lookup_says_what_is_possible() {
    let tiers = [("free", Gcra::new(Rate::per_minute(60)))];
    let plans = || {
        plans("per-user", tiers)
            .by(Header::new("x-api-key"))
            .lookup(|_| async { None::<&str> })
    };
    let error = |limit: Limit| ThrottleLayer::new(limit).map(drop).unwrap_err().to_string();
    for (limit, said) in [
        (
            plans().cache(16_777_217, LONG).unknown("free"),
            "cache is 16777217: at most 16777216 identities are remembered: room for all is \
                reserved",
        ),
        (
            plans().lookups(0, LONG).unknown("free"),
            "lookups is 0: at least one lookup at a time, or no tier is ever known",
        ),
        (
            plans().lookups(1, Duration::ZERO).unknown("free"),
            "deadline of lookups is 0: a lookup needs some time",
        ),
        (
            plans().unknown("gold"),
            "unknown is \"gold\": it must be the name of a tier",
        ),
    ] {
        assert_eq!(error(limit), format!("policy \"per-user\": {said}"));
    }
    assert!(
        ThrottleLayer::new(plans().lookups(1, Duration::from_nanos(1)).unknown("free")).is_ok()
    );
}

/// The answers of a lookup in each of its forms.
#[test]
fn answer_is_the_number_of_the_named_tier() {
    use super::IntoTier;

    let named = |name| Ok(Some(Tier::named(name)));
    assert_eq!(Some("pro").into_tier(), named("pro"));
    assert_eq!(Some("gold".to_owned()).into_tier(), named("gold"));
    assert_eq!(None::<&str>.into_tier(), Ok(None));
    assert_eq!(Ok::<_, ()>(Some("free")).into_tier(), named("free"));
    assert_eq!(Ok::<Option<&str>, ()>(None).into_tier(), Ok(None));
    let own = Tier::own(Gcra::new(Rate::per_minute(7)));
    assert_eq!(Some(own.clone()).into_tier(), Ok(Some(own.clone())));
    assert_eq!(Ok::<_, ()>(Some(own.clone())).into_tier(), Ok(Some(own)));
    assert_eq!(
        Err::<Option<Tier>, _>("it is away").into_tier(),
        Err(super::LookupFailed)
    );
    assert_eq!(
        Err::<Option<&str>, _>("it is away").into_tier(),
        Err(super::LookupFailed)
    );
}

/// It did not wait for the lookup, whose result was there when it wanted to.
#[tokio::test(start_paused = true)]
async fn parameters_that_the_limit_cannot_have_are_counted_as_invalid() {
    let tiers = || [("free", Gcra::new(Rate::per_minute(60)))];
    let built =
        plans("p", tiers())
            .by(Header::new("x-api-key"))
            .lookup(|count: String| async move {
                let count: u64 = count.parse().ok()?;
                Some(if count < 9 {
                    Tier::own(Gcra::new(Rate::per_minute(count)))
                } else {
                    Tier::own(Gcra::new(Rate::per_hour(1)).burst(count))
                })
            });
    let counted = Arc::new([const { AtomicU32::new(0) }; LookupResult::LABELS.len()]);
    let counter = Arc::clone(&counted);
    let lookup = built.lookup.reporting(Arc::new(move |result| {
        counter[result as usize].fetch_add(1, Ordering::Relaxed);
    }));
    let counts = || {
        counted
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    };
    for (user, expected) in [("0", (0, 1)), ("9", (0, 2)), ("7", (1, 2)), ("no", (1, 2))] {
        later(lookup.find(&parts(user))).await;
        assert_eq!((counts()[1], counts()[4]), expected, "{user}");
    }
    assert_eq!((counts()[2], counts()[3]), (1, 0));
}
