use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Request};
use throttle_core::{Carry, Gcra, IntoAlgorithm, Key, LeakyBucket, Rate};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::tier_lookup::PlanLookup;
use super::{Plans, plans};
use crate::limit::{Found, LookedUp, TierLookup};
use crate::{Header, ThrottleLayer};

fn parts(identity: &str) -> Parts {
    Request::builder().header("x-api-key", identity).body(()).unwrap().into_parts().0
}

/// Counts lookups, lets them wait for a sign, and answers what it is told to.
#[derive(Default)]
struct Office {
    asked: AtomicUsize,
    open: Notify,
    answer: Mutex<Option<Result<Option<&'static str>, ()>>>,
}

impl Office {
    fn answers(&self, answer: Result<Option<&'static str>, ()>) {
        *self.answer.lock().unwrap() = Some(answer);
        self.open.notify_waiters();
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn lookup_at(office: &Arc<Office>, entries: usize, keep_for: Duration) -> PlanLookup {
    let office = Arc::clone(office);
    let mut built = plans("p", tiers()).by(Header::new("x-api-key")).lookup(move |_| {
        let office = Arc::clone(&office);
        async move {
            office.asked.fetch_add(1, Ordering::SeqCst);
            loop {
                let opened = office.open.notified();
                let answer = *office.answer.lock().unwrap();
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
    [("free", 60), ("pro", 600), ("internal", 6_000)].map(|(tier, count)| (tier, Gcra::new(Rate::per_minute(count))))
}

fn later(found: Found) -> LookedUp {
    match found {
        Found::Later(key) => key,
        Found::Now(..) => panic!("known at once"),
    }
}

async fn tier(lookup: &PlanLookup, identity: &str) -> u8 {
    match lookup.find(&parts(identity)) {
        Found::Now(_, tier) => tier,
        Found::Later(key) => key.await.1,
    }
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn plans_of_many_who_ask_at_once_are_looked_up_once() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, LONG);
    let waiting: Vec<_> = (0..64).map(|_| tokio::spawn(later(lookup.find(&parts("ada"))))).collect();
    while office.asked() == 0 {
        tokio::task::yield_now().await;
    }
    office.answers(Ok(Some("pro")));
    for one in waiting {
        let (key, tier) = one.await.unwrap();
        assert_eq!((key, tier), (Some(Key::builder().bytes(b"ada").finish()), 1));
    }
    assert_eq!(office.asked(), 1);
    assert!(matches!(lookup.find(&parts("ada")), Found::Now(Some(_), 1)), "from now on at once");
}

#[tokio::test]
async fn plans_that_one_gives_up_waiting_for_others_still_get() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, LONG);
    // The one who began it, and who polled it last, both go.
    let mut first = later(lookup.find(&parts("ada")));
    let second = tokio::spawn(later(lookup.find(&parts("ada"))));
    let third = tokio::spawn(later(lookup.find(&parts("ada"))));
    assert!(polled_once(&mut first).await.is_none());
    tokio::task::yield_now().await;
    assert!(polled_once(&mut first).await.is_none());
    drop(first);
    third.abort();
    office.answers(Ok(Some("internal")));
    let told = tokio::time::timeout(Duration::from_secs(5), second).await.expect("the lookup goes on").unwrap();
    assert_eq!((told.1, office.asked()), (2, 1));
    // Where all give up, the next one asks again.
    let other = later(lookup.find(&parts("bob")));
    drop(other);
    assert_eq!((tier(&lookup, "bob").await, office.asked()), (2, 2));
}

/// Polls once.
async fn polled_once(future: &mut LookedUp) -> Option<u8> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready((_, tier)) => Some(tier),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn plans_whose_lookup_fails_are_the_last_known_ones_or_else_the_default() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, Duration::from_millis(1));
    office.answers(Err(()));
    assert_eq!(tier(&lookup, "ada").await, 0, "nothing was ever known");
    office.answers(Ok(Some("pro")));
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(tier(&lookup, "ada").await, 1, "a failure is not remembered for long");
    office.answers(Err(()));
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!((tier(&lookup, "ada").await, office.asked()), (1, 3), "the last known one");
}

#[tokio::test]
async fn plans_of_the_unknown_are_remembered_too() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, LONG);
    for answer in [Ok(None), Ok(Some("gold"))] {
        office.answers(answer);
        let who = format!("{answer:?}");
        for _ in 0..5 {
            assert_eq!(tier(&lookup, &who).await, 0);
        }
    }
    assert_eq!(office.asked(), 2, "once each");
}

#[tokio::test]
async fn plans_are_forgotten_when_there_are_too_many() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 8, LONG);
    office.answers(Ok(Some("pro")));
    for identity in 0..100 {
        assert_eq!(tier(&lookup, &identity.to_string()).await, 1);
    }
    let before = office.asked();
    assert_eq!(tier(&lookup, "0").await, 1);
    assert_eq!((before, office.asked()), (100, 101), "looked up again");
}

#[tokio::test]
async fn plans_whose_lookup_panics_keep_nobody_waiting() {
    let open = Arc::new(Notify::new());
    let opened = Arc::clone(&open);
    let lookup = move |_| {
        let opened = Arc::clone(&opened);
        async move {
            opened.notified().await;
            if true {
                panic!("a lookup that panics");
            }
            Some("pro")
        }
    };
    let lookup = plans("p", tiers()).by(Header::new("x-api-key")).lookup(lookup).lookup;
    let mut waiting: Vec<_> = (0..4).map(|_| later(lookup.find(&parts("ada")))).collect();
    for one in &mut waiting {
        assert!(polled_once(one).await.is_none());
    }
    let waiting: Vec<_> = waiting.into_iter().map(tokio::spawn).collect();
    open.notify_one();
    let mut panics = 0;
    for one in waiting {
        match tokio::time::timeout(Duration::from_secs(5), one).await.expect("nobody waits for ever") {
            Ok((_, tier)) => assert_eq!(tier, 0, "the default"),
            Err(_) => panics += 1,
        }
    }
    assert_eq!(panics, 1);
}

#[tokio::test]
async fn plans_are_looked_up_anew_though_somebody_has_not_fetched_the_last_answer() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, Duration::ZERO);
    let mut slow = later(lookup.find(&parts("ada")));
    assert!(polled_once(&mut slow).await.is_none());
    office.answers(Ok(Some("pro")));
    assert_eq!((tier(&lookup, "ada").await, office.asked()), (1, 1));
    office.answers(Ok(Some("internal")));
    assert_eq!((tier(&lookup, "ada").await, office.asked()), (2, 2));
    assert_eq!(slow.await.1, 1, "that was told while it waited");
}

#[tokio::test]
async fn plans_are_looked_up_anew_after_a_panic_though_somebody_has_not_heard_of_it() {
    let asked = Arc::new(AtomicUsize::new(0));
    let lookup = {
        let asked = Arc::clone(&asked);
        move |_| {
            let first = asked.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                tokio::task::yield_now().await;
                assert!(!first, "a lookup that panics");
                Some("pro")
            }
        }
    };
    let lookup = plans("p", tiers()).by(Header::new("x-api-key")).lookup(lookup).lookup;
    let mut slow = later(lookup.find(&parts("ada")));
    assert!(polled_once(&mut slow).await.is_none());
    assert!(tokio::spawn(later(lookup.find(&parts("ada")))).await.is_err(), "the request that polled it has the panic");
    assert_eq!(tier(&lookup, "ada").await, 1);
    assert_eq!(slow.await.1, 0, "the default");
}

#[tokio::test(start_paused = true)]
async fn failed_lookup_is_repeated_after_a_second_and_not_before() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, LONG);
    office.answers(Err(()));
    assert_eq!((tier(&lookup, "ada").await, office.asked()), (0, 1));
    office.answers(Ok(Some("pro")));
    tokio::time::advance(Duration::from_millis(999)).await;
    for _ in 0..5 {
        assert_eq!((tier(&lookup, "ada").await, office.asked()), (0, 1), "not with each request");
    }
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!((tier(&lookup, "ada").await, office.asked()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn failed_lookup_is_repeated_sooner_where_tiers_are_remembered_for_less() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, Duration::from_millis(100));
    office.answers(Err(()));
    assert_eq!(tier(&lookup, "ada").await, 0);
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!((tier(&lookup, "ada").await, office.asked()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn law_12_lookup_that_hangs_is_answered_at_its_deadline_and_shared_until_then() {
    let office = Arc::new(Office::default());
    let mut lookup = lookup_at(&office, 10, LONG);
    lookup.deadline = Duration::from_millis(200);
    let begun = Instant::now();
    let mut waiting: Vec<_> = (0..32).map(|_| tokio::spawn(later(lookup.find(&parts("ada"))))).collect();
    tokio::time::sleep(Duration::from_millis(150)).await;
    waiting.extend((0..32).map(|_| tokio::spawn(later(lookup.find(&parts("ada"))))));
    for one in waiting {
        assert_eq!(one.await.unwrap().1, 0, "the stated tier");
    }
    assert_eq!((begun.elapsed().as_millis(), office.asked(), lookup.running()), (200, 1, 0));
    // As after any failure, not at once again.
    assert_eq!((tier(&lookup, "ada").await, office.asked()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn law_12_lookup_that_hangs_leaves_a_known_identity_in_its_last_tier() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, Duration::from_secs(60));
    office.answers(Ok(Some("pro")));
    assert_eq!(tier(&lookup, "ada").await, 1);
    *office.answer.lock().unwrap() = None;
    for asked in 2..5 {
        tokio::time::advance(Duration::from_secs(60)).await;
        let begun = Instant::now();
        assert_eq!((tier(&lookup, "ada").await, office.asked()), (1, asked));
        assert_eq!(begun.elapsed(), Duration::from_secs(1), "the default deadline");
    }
}

#[tokio::test(start_paused = true)]
async fn law_13_lookup_beyond_the_bound_counts_as_failed_at_once() {
    let office = Arc::new(Office::default());
    let mut lookup = lookup_at(&office, 10, Duration::from_secs(60));
    lookup.max_lookups = 2;
    office.answers(Ok(Some("pro")));
    assert_eq!(tier(&lookup, "ada").await, 1);
    tokio::time::advance(Duration::from_secs(60)).await;
    *office.answer.lock().unwrap() = None;
    let mut hanging = ["one", "two"].map(|made_up| later(lookup.find(&parts(made_up))));
    for hanging in &mut hanging {
        assert!(polled_once(hanging).await.is_none());
    }
    assert_eq!((office.asked(), lookup.running()), (3, 2));
    for _ in 0..100 {
        assert_eq!(polled_once(&mut later(lookup.find(&parts("ada")))).await, Some(1), "the last known tier");
        assert_eq!(polled_once(&mut later(lookup.find(&parts("bob")))).await, Some(0), "the stated tier");
    }
    assert_eq!((office.asked(), lookup.running()), (3, 2), "those cost no lookup");
    assert!(polled_once(&mut later(lookup.find(&parts("one")))).await.is_none(), "one under way is still shared");
    drop(hanging);
    office.answers(Ok(Some("internal")));
    assert_eq!(tier(&lookup, "bob").await, 2, "it was not remembered as failed");
    assert_eq!(tier(&lookup, "ada").await, 2);
}

/// A request that is refused before its lookup takes no place from others.
#[tokio::test]
async fn lookup_begins_when_it_is_waited_for() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, LONG);
    let waits = later(lookup.find(&parts("ada")));
    assert_eq!((office.asked(), lookup.running()), (0, 0));
    office.answers(Ok(Some("pro")));
    assert_eq!(tier(&lookup, "ada").await, 1);
    assert_eq!((waits.await.1, office.asked()), (1, 1), "another request's lookup has ended meanwhile");
}

#[tokio::test]
async fn identities_of_which_nothing_is_known_share_a_budget_while_lookups_fail() {
    let office = Arc::new(Office::default());
    let mut lookup = lookup_at(&office, 100, Duration::ZERO);
    lookup.unknown.as_missing = true;
    let find = async |identity: &str| match lookup.find(&parts(identity)) {
        Found::Now(key, tier) => (key, tier),
        Found::Later(key) => key.await,
    };
    let own = |identity: &str| Some(Key::builder().bytes(identity.as_bytes()).finish());
    office.answers(Ok(Some("pro")));
    assert_eq!(find("ada").await, (own("ada"), 1));
    office.answers(Ok(None));
    assert_eq!(find("eve").await, (None, 0));
    office.answers(Err(()));
    let (shared, tier) = find("made up").await;
    assert_eq!(tier, 0);
    assert!(shared.is_some() && shared != Some(Key::missing()), "not the budget of a missing key");
    for n in 0..20 {
        assert_eq!(find(&n.to_string()).await, (shared.clone(), 0));
        // Failing does not make an identity known.
        assert_eq!(find("made up").await, (shared.clone(), 0));
    }
    assert_eq!(find("ada").await, (own("ada"), 1), "her last tier and her own budget");
    assert_eq!(find("eve").await, (None, 0), "still unknown");
    office.answers(Ok(Some("pro")));
    assert_eq!(find("made up").await, (own("made up"), 1), "from the first lookup that succeeds");
}

#[tokio::test]
async fn identities_have_a_budget_each_while_lookups_fail_where_unknown_ones_have() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 100, Duration::ZERO);
    office.answers(Err(()));
    for identity in ["ada", "bob"] {
        let own = Key::builder().bytes(identity.as_bytes()).finish();
        assert_eq!(later(lookup.find(&parts(identity))).await, (Some(own), 0));
    }
}

fn with(tiers: Vec<(&'static str, Gcra)>, unknown: &str) -> Plans {
    plans("per-user", tiers).by(Header::new("x-api-key")).lookup(|_| async { None::<&str> }).unknown(unknown)
}

#[test]
fn plans_that_are_wrong_are_refused_with_field_value_and_rule() {
    let per_minute = |count| Gcra::new(Rate::per_minute(count));
    let two = || vec![("free", per_minute(60)), ("pro", per_minute(600))];
    let refused = |plans: Plans| {
        let error = ThrottleLayer::new(plans).map(drop).unwrap_err();
        assert_eq!(error.policy(), Some("per-user"));
        (error.field().to_owned(), error.value().to_owned())
    };
    assert_eq!(refused(with(vec![], "free")), ("tiers".into(), "none".into()));
    assert_eq!(refused(with(two(), "gold")), ("unknown".into(), "\"gold\"".into()));
    assert_eq!(
        refused(with(vec![("free", per_minute(60)), ("free", per_minute(600))], "free")),
        ("tier".into(), "\"free\" twice".into())
    );
    assert_eq!(refused(with(vec![("", per_minute(60))], "")), ("tier".into(), "\"\"".into()));
    assert_eq!(refused(with(vec![("free", per_minute(60).burst(0))], "free")), ("burst".into(), "0".into()));
    let slow = vec![("free", per_minute(60).burst(5)), ("pro", per_minute(60).burst(600))];
    assert_eq!(
        refused(with(slow, "free").on_change(Carry::Proportional)),
        ("carry".into(), "Proportional between \"free\" and \"pro\"".into())
    );
    assert!(ThrottleLayer::new(with(two(), "pro").on_change(Carry::Proportional)).is_ok());
    let most = 1 << 24;
    assert_eq!(refused(with(two(), "free").cache(most + 1, LONG)), ("cache".into(), (most + 1).to_string()));
    assert_eq!(refused(with(two(), "free").lookups(0, LONG)), ("lookups".into(), "0".into()));
    assert_eq!(refused(with(two(), "free").lookups(1, Duration::ZERO)), ("deadline of lookups".into(), "0".into()));
}

/// Of those who give up, nothing is kept while others wait on.
#[tokio::test]
async fn plans_that_some_give_up_waiting_for_keep_nothing_of_them() {
    struct Sleeper;
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {}
    }
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, LONG);
    let mut patient = later(lookup.find(&parts("ada")));
    assert!(polled_once(&mut patient).await.is_none());
    let sleeper = Arc::new(Sleeper);
    for _ in 0..100 {
        let mut given_up = later(lookup.find(&parts("ada")));
        let waker = Waker::from(Arc::clone(&sleeper));
        assert!(given_up.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!((Arc::strong_count(&sleeper), office.asked()), (1, 1));
}

#[test]
fn plans_of_which_a_tier_delays_are_refused_like_a_limit_that_does() {
    let queue = LeakyBucket::new(Rate::per_second(1)).max_wait(LONG);
    let tiers = [("free", Gcra::new(Rate::per_minute(60)).into_algorithm()), ("pro", queue.into_algorithm())];
    let tiers = tiers.map(|(tier, algorithm)| (tier, algorithm.unwrap()));
    let delaying = plans("per-user", tiers).by(Header::new("x-api-key")).lookup(|_| async { None::<&str> });
    let error = ThrottleLayer::new(delaying.unknown("free")).map(drop).unwrap_err();
    assert_eq!((error.policy(), error.field(), error.value()), (Some("per-user"), "algorithm", "leaky_bucket"));
}

#[test]
fn plans_by_a_header_that_is_none_are_refused() {
    let plans = plans("per-user", tiers()).by(Header::new("x api key")).lookup(|_| async { None::<&str> });
    let error = ThrottleLayer::new(plans.unknown("free")).map(drop).unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("per-user"), "header"));
}

/// Whoever has no identity, or one that is no text, is not looked up.
#[tokio::test]
async fn plans_of_those_who_cannot_be_looked_up_are_the_stated_ones() {
    let office = Arc::new(Office::default());
    let mut lookup = lookup_at(&office, 10, LONG);
    lookup.unknown.tier = 2;
    let nobody = Request::new(()).into_parts().0;
    assert!(matches!(lookup.find(&nobody), Found::Now(None, 2)));
    let mut no_text = Request::new(());
    no_text.headers_mut().insert("x-api-key", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    assert!(matches!(lookup.find(&no_text.into_parts().0), Found::Now(Some(_), 2)));
    assert_eq!(office.asked(), 0);
}

/// A lookup that somebody waits for is in the books, and none that nobody waits for or that is over.
#[tokio::test]
async fn plans_that_nobody_waits_for_leave_nothing_behind() {
    let office = Arc::new(Office::default());
    let lookup = lookup_at(&office, 10, LONG);
    for identity in 0..100 {
        let mut given_up = later(lookup.find(&parts(&identity.to_string())));
        assert!(polled_once(&mut given_up).await.is_none());
        assert_eq!(lookup.running(), 1);
    }
    assert_eq!(lookup.running(), 0);
    office.answers(Ok(Some("pro")));
    assert_eq!((tier(&lookup, "ada").await, lookup.running()), (1, 0));
}
