use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Carry, Gcra, Key, ManualClock, MemoryBackend, Rate};
use tower::{Layer, ServiceExt, service_fn};

use super::*;
use crate::plans::{Plans, Tier, plans};
use crate::{Constant, Header, LimitReport, ThrottleLayer, all, any, limit};

type Answer = Result<Option<Tier>, Infallible>;

/// The rows of a database, by customer.
#[derive(Clone, Default)]
struct Rows(Arc<Mutex<HashMap<String, Row>>>);

#[derive(Clone, Copy)]
enum Row {
    Tier(&'static str),
    /// Units an hour, and the burst.
    Own(u64, u64),
    Log(u64),
}

impl Rows {
    fn set(&self, customer: &str, row: Row) {
        lock(&self.0).insert(customer.to_owned(), row);
    }

    fn find(&self, customer: &str) -> Answer {
        Ok(match lock(&self.0).get(customer) {
            None => None,
            Some(Row::Tier(name)) => Some(Tier::named(*name)),
            Some(Row::Own(count, burst)) => Some(Tier::own(Gcra::new(Rate::per_hour(*count)).burst(*burst))),
            Some(Row::Log(count)) => Some(Tier::own(throttle_core::SlidingLog::new(Rate::per_hour(*count)))),
        })
    }
}

const KEPT: Duration = Duration::from_secs(60);

fn plan(rows: &Rows) -> Plans {
    let rows = rows.clone();
    let per_hour = |count| Gcra::new(Rate::per_hour(count));
    plans("plan", [("free", per_hour(10)), ("pro", per_hour(100))])
        .by(Header::new("x-customer"))
        .lookup(move |customer: String| {
            let found = rows.find(&customer);
            async move { found }
        })
        .unknown("free")
        .cache(1_000, KEPT)
}

type Memory = MemoryBackend<ManualClock>;

fn memory() -> Memory {
    MemoryBackend::builder().clock(ManualClock::default()).build()
}

fn layer(limits: impl crate::limit::IntoLimitTree) -> ThrottleLayer<Memory> {
    ThrottleLayer::new(limits).unwrap().backend(memory()).unwrap()
}

async fn send<B: Backend>(layer: &ThrottleLayer<B>, customer: &str) -> Response<()> {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let request = Request::builder().header("x-customer", customer).body(()).unwrap();
    layer.layer(inner).oneshot(request).await.unwrap().map(drop)
}

/// Requests that are admitted until one is refused.
async fn admitted<B: Backend>(layer: &ThrottleLayer<B>, customer: &str) -> usize {
    for admitted in 0..10_000 {
        if send(layer, customer).await.status() == StatusCode::TOO_MANY_REQUESTS {
            return admitted;
        }
    }
    panic!("nothing is refused")
}

fn header<'a>(response: &'a Response<()>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Until what is remembered of customers is looked up again.
async fn forget() {
    tokio::time::advance(KEPT).await;
}

#[tokio::test(start_paused = true)]
async fn customers_are_limited_by_their_own_numbers_and_read_them() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(36, 7));
    rows.set("bob", Row::Own(3_600, 25));
    rows.set("pro", Row::Tier("pro"));
    let alone = layer(plan(&rows));
    let beside = layer(all((limit("all", Gcra::new(Rate::per_second(1_000))).by(Constant), plan(&rows))));
    for (layer, all, left) in [(alone, "", ""), (beside, "\"all\";q=1000;w=1, ", "\"all\";r=999;t=1, ")] {
        let layer = layer.report_in_response(true);
        for (customer, policy, status, burst) in [
            ("ada", "\"plan\";q=36;w=3600", "\"plan\";r=6;t=600", 7),
            ("bob", "\"plan\";q=3600;w=3600", "\"plan\";r=24;t=1", 25),
            ("pro", "\"plan\";q=100;w=3600", "\"plan\";r=99;t=36", 100),
            ("eve", "\"plan\";q=10;w=3600", "\"plan\";r=9;t=360", 10),
        ] {
            for again in [false, true] {
                let response = send(&layer, customer).await;
                assert_eq!(response.status(), StatusCode::OK);
                assert_eq!(header(&response, "ratelimit-policy"), format!("{all}{policy}"), "{customer}");
                if !again && customer == "ada" {
                    assert_eq!(header(&response, "ratelimit"), format!("{left}{status}"));
                }
                let report = response.extensions().get::<LimitReport>().unwrap();
                let tier = if burst == 100 {
                    "pro"
                } else if burst == 10 {
                    "free"
                } else {
                    "own"
                };
                assert_eq!(report.tier("plan"), Some(tier));
                let capacity = report.statuses().find(|(policy, _)| policy.name() == "plan").unwrap();
                assert_eq!(capacity.0.algorithm().capacity(), burst);
            }
            assert_eq!(admitted(&layer, customer).await as u64, burst - 2, "{customer}");
            let refused = send(&layer, customer).await;
            assert_eq!(header(&refused, "ratelimit-policy"), format!("{all}{policy}"), "{customer}");
            assert!(!header(&refused, "retry-after").is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn law_07_what_was_used_stays_used_when_the_numbers_change() {
    // The 30 have no room for 31.
    for (carry, as_own, as_other, as_pro) in [(Carry::Keep, 19, 0, 68), (Carry::Reset, 49, 29, 99)] {
        let rows = Rows::default();
        let layer = layer(plan(&rows).on_change(carry));
        rows.set("ada", Row::Tier("pro"));
        let left = async || {
            forget().await;
            let response = send(&layer, "ada").await;
            let left = header(&response, "ratelimit").split(';').nth(1).unwrap_or("").to_owned();
            left.trim_start_matches("r=").parse::<u64>().unwrap()
        };
        for _ in 0..29 {
            assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
        }
        assert_eq!(left().await, 70);
        rows.set("ada", Row::Own(50, 50));
        let own = left().await;
        rows.set("ada", Row::Own(30, 30));
        let other = left().await;
        rows.set("ada", Row::Tier("pro"));
        let pro = left().await;
        assert_eq!((own, other, pro), (as_own, as_other, as_pro), "{carry:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_numbers_are_a_failed_lookup() {
    let rows = Rows::default();
    let layer = layer(plan(&rows));
    for (customer, row) in [("zero", Row::Own(0, 5)), ("none", Row::Own(5, 0)), ("log", Row::Log(50))] {
        rows.set(customer, row);
        assert_eq!(admitted(&layer, customer).await, 10, "the tier of identities that are not known: {customer}");
    }
    let field = |customer| rows.find(customer).unwrap().unwrap().error().map(|error| error.field());
    assert_eq!((field("zero"), field("none"), field("log")), (Some("rate count"), Some("burst"), None));
    let proportional = ThrottleLayer::new(plan(&rows).on_change(Carry::Proportional)).unwrap();
    rows.set("ada", Row::Own(7, 7));
    let proportional = proportional.backend(memory()).unwrap();
    assert_eq!(admitted(&proportional, "ada").await, 10, "in proportion with the tiers, but with no other's numbers");
    rows.set("ada", Row::Own(7, 7));
    assert_eq!(admitted(&layer, "ada").await, 7);
    rows.set("ada", Row::Own(1_000_000, 0));
    forget().await;
    assert_eq!(admitted(&layer, "ada").await, 0, "the last known numbers");
    assert_eq!(header(&send(&layer, "ada").await, "ratelimit-policy"), "\"plan\";q=7;w=3600");
}

#[tokio::test(start_paused = true)]
async fn law_09_numbers_beyond_the_bound_are_a_failed_lookup_and_forgetting_them_gives_nothing_back() {
    let rows = Rows::default();
    let layer = layer(plan(&rows).own_numbers(2));
    for (customer, own) in [("a", 20), ("b", 30), ("c", 40), ("d", 20)] {
        rows.set(customer, Row::Own(own, own));
    }
    assert_eq!(admitted(&layer, "a").await, 20);
    assert_eq!(admitted(&layer, "b").await, 30);
    assert_eq!(admitted(&layer, "c").await, 10, "no third ones beside them");
    assert_eq!(admitted(&layer, "d").await, 20, "the same as of another customer");
    forget().await;
    assert_eq!(send(&layer, "a").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(admitted(&layer, "c").await, 30, "10 of 40 are used; nobody has used 30 for as long");
    assert_eq!(admitted(&layer, "b").await, 0, "both are in use, and 30 are more than a tier of 10");
    forget().await;
    assert_eq!(admitted(&layer, "b").await, 0, "its own numbers again, and what was used under them");
    for customer in ["a", "c", "d"] {
        forget().await;
        assert_eq!(admitted(&layer, customer).await, 0, "{customer}");
    }
    let sets = layer.current.with(|shared| lock(&shared.own_sets.sets).slots.len());
    assert!(sets <= 2, "{sets}");
}

#[tokio::test(start_paused = true)]
async fn numbers_that_may_not_be_used_are_refused_when_the_layer_is_built() {
    let rows = Rows::default();
    let error = ThrottleLayer::new(plan(&rows).own_numbers(1_025)).unwrap_err();
    assert_eq!((error.policy(), error.field(), error.value()), (Some("plan"), "own_numbers", "1025"));
    let none = layer(plan(&rows).own_numbers(0));
    rows.set("ada", Row::Own(50, 50));
    assert_eq!(admitted(&none, "ada").await, 10);
}

/// Two layers on one backend, of which one is built again: own numbers stand beside all of them.
#[tokio::test(start_paused = true)]
async fn own_numbers_of_two_layers_on_one_backend_are_one_budget() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(50, 50));
    let one = layer(plan(&rows));
    let memory = one.current.with(|shared| shared.backend.clone());
    assert_eq!(send(&one, "ada").await.status(), StatusCode::OK);
    let two = ThrottleLayer::new(plan(&rows)).unwrap().backend(memory).unwrap().headers(crate::Dialect::None);
    assert_eq!(admitted(&two, "ada").await, 49);
    assert_eq!(admitted(&one, "ada").await, 0);
    assert_eq!(admitted(&one.headers(crate::Dialect::None), "eve").await, 10);
}

#[tokio::test(start_paused = true)]
async fn charges_under_own_numbers_are_given_back_and_wait_like_any() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(3_600, 5));
    let refunding = layer(plan(&rows).into_limit().refund_successful());
    for _ in 0..20 {
        assert_eq!(send(&refunding, "ada").await.status(), StatusCode::OK);
    }
    let clock = ManualClock::default();
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    let waiting = plan(&rows).into_limit().wait_up_to(Duration::from_secs(1));
    let waiting = ThrottleLayer::new(waiting).unwrap().backend(memory).unwrap();
    for _ in 0..5 {
        assert_eq!(send(&waiting, "ada").await.status(), StatusCode::OK);
    }
    let started = tokio::time::Instant::now();
    let (response, ()) = tokio::join!(send(&waiting, "ada"), async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        clock.advance(Duration::from_secs(1));
    });
    assert_eq!((response.status(), started.elapsed().as_secs()), (StatusCode::OK, 1));
}
/// The customer's own numbers are one member of an `any`: the other one admits when they are used up.
#[tokio::test(start_paused = true)]
async fn law_05_own_numbers_within_any_are_charged_first_and_then_the_other_member() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(7, 7));
    let pool = || limit("pool", Gcra::new(Rate::per_hour(20))).by(Constant);
    let layer = layer(all((any((plan(&rows), pool())), limit("all", Gcra::new(Rate::per_hour(1_000))).by(Constant))));
    assert_eq!(admitted(&layer, "ada").await, 7 + 20);
    assert_eq!(admitted(&layer, "eve").await, 10, "the pool is used up, and a tier is not");
    rows.set("ada", Row::Own(9, 9));
    forget().await;
    assert_eq!(admitted(&layer, "ada").await, 2);
    let response = send(&layer, "eve").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// Another layer of the same store replaces the tiers while own numbers are in use.
#[tokio::test(start_paused = true)]
async fn own_numbers_go_on_while_the_tiers_are_replaced() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(50, 50));
    let memory = memory();
    let layer_of = |plan: Plans| ThrottleLayer::new(plan).unwrap().backend(memory.clone()).unwrap();
    let former = layer_of(plan(&rows));
    for _ in 0..20 {
        assert_eq!(send(&former, "ada").await.status(), StatusCode::OK);
    }
    let tiers = [("free", Gcra::new(Rate::per_hour(30)))];
    let rows_of = rows.clone();
    let changed = plans("plan", tiers).by(Header::new("x-customer")).lookup(move |customer: String| {
        let found = rows_of.find(&customer);
        async move { found }
    });
    let later = layer_of(changed.unknown("free").cache(1_000, KEPT).replace_existing());
    assert_eq!(header(&send(&former, "ada").await, "ratelimit-policy"), "\"plan\";q=50;w=3600");
    assert!(header(&send(&later, "ada").await, "ratelimit").starts_with("\"plan\";r=28;"));
    assert_eq!(admitted(&former, "ada").await, 28);
    assert_eq!(admitted(&later, "ada").await, 0);
    assert_eq!(admitted(&former, "eve").await, 30, "the tiers are the later ones");
    rows.set("ada", Row::Tier("free"));
    forget().await;
    assert_eq!(admitted(&later, "ada").await, 0, "50 are used of 30");
}

/// Tasks that race for one budget, in a store with room and in one without.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn law_06_tasks_that_race_under_own_numbers_are_admitted_exactly_as_often_as_they_say() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(40, 40));
    for max_keys in [1_000, 1] {
        let memory = MemoryBackend::builder().clock(ManualClock::default()).max_keys(max_keys).build();
        let layer = ThrottleLayer::new(plan(&rows)).unwrap().backend(memory).unwrap();
        assert_eq!(send(&layer, "fills the store").await.status(), StatusCode::OK);
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let layer = layer.clone();
                tokio::spawn(async move { send(&layer, "ada").await.status() == StatusCode::OK })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += usize::from(task.await.unwrap());
        }
        assert_eq!(admitted, 40, "{max_keys} keys");
        assert_eq!(layer.current.with(|shared| lock(&shared.own_sets.sets).slots.len()), 1);
    }
}

/// A backend in memory that refuses limits of 40 units.
#[derive(Clone)]
struct Refusing(Memory, Arc<Mutex<Vec<Vec<u64>>>>);

impl Backend for Refusing {
    type Prepared = <Memory as Backend>::Prepared;
    type Decide = <Memory as Backend>::Decide;
    type Done = <Memory as Backend>::Done;

    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError> {
        let capacities = set.policies().iter().map(|policy| policy.algorithm().capacity());
        lock(&self.1).push(capacities.collect());
        match set.policies().iter().find(|policy| policy.algorithm().capacity() == 40) {
            Some(policy) => Err(ConfigError::new("capacity", 40, "this backend has no 40").in_policy(policy.name())),
            None => self.0.prepare(set),
        }
    }

    fn set(prepared: &Self::Prepared) -> &PolicySet {
        Memory::set(prepared)
    }

    fn in_force(&self, prepared: &Arc<Self::Prepared>) -> Option<Arc<PolicySet>> {
        self.0.in_force(prepared)
    }

    fn decide(&self, prepared: &Arc<Self::Prepared>, calls: &[Call]) -> Self::Decide {
        self.0.decide(prepared, calls)
    }

    fn settle(&self, prepared: &Arc<Self::Prepared>, receipt: Receipt) -> Self::Done {
        self.0.settle(prepared, receipt)
    }

    fn reset(&self, prepared: &Arc<Self::Prepared>, policy: usize, key: &Key) -> Self::Done {
        self.0.reset(prepared, policy, key)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.0.reset_all(prefix)
    }

    fn can_fail(&self) -> bool {
        false
    }
}

/// The limit whose numbers are refused has the tier of unknown identities; the other one keeps its numbers.
#[tokio::test(start_paused = true)]
async fn numbers_that_the_backend_refuses_leave_those_of_other_limits_and_are_tried_once() {
    let (rows, others) = (Rows::default(), Rows::default());
    let other = |rows: Rows| {
        plans("other", [("few", Gcra::new(Rate::per_hour(3))), ("free", Gcra::new(Rate::per_hour(200)))])
            .by(Header::new("x-customer"))
            .lookup(move |customer: String| {
                let found = rows.find(&customer);
                async move { found }
            })
            .unknown("free")
    };
    rows.set("ada", Row::Own(40, 40));
    others.set("ada", Row::Own(8, 8));
    rows.set("bob", Row::Own(40, 40));
    others.set("bob", Row::Tier("few"));
    let backend = Refusing(memory(), Arc::default());
    let layer = ThrottleLayer::new(all((plan(&rows), other(others.clone())))).unwrap();
    let layer = layer.backend(backend.clone()).unwrap();
    assert_eq!(admitted(&layer, "ada").await, 8, "the plan's 10 of a free identity, and the other's own 8");
    assert_eq!(admitted(&layer, "bob").await, 3, "no tier of the other limit has changed");
    assert_eq!(*lock(&backend.1), [vec![10, 3], vec![40, 8], vec![10, 8], vec![40, 3]], "each once");
    #[cfg(feature = "rules")]
    {
        let (parts, ()) = Request::builder().header("x-customer", "ada").body(()).unwrap().into_parts();
        let shared = layer.current.with(Arc::clone);
        let explained = crate::throttle::explain::explain(shared, &parts).await.unwrap();
        let left = explained.limits.iter().map(|limit| limit.left.as_ref().map(|left| (left.units, left.of)));
        assert_eq!(left.collect::<Vec<_>>(), [Some((2, 10)), Some((0, 8))], "as it was decided");
    }
}

/// As many combinations as two limits can have, up to a bound; each is made again when it was forgotten.
#[tokio::test(start_paused = true)]
async fn combinations_of_numbers_are_bounded_and_displacing_them_forgets_nothing() {
    assert_eq!(most(&[]), 1);
    let (rows, others) = (Rows::default(), Rows::default());
    let other = others.clone();
    let other = plans("other", [("free", Gcra::new(Rate::per_hour(1_000)))])
        .by(Header::new("x-customer"))
        .lookup(move |customer: String| {
            let found = other.find(&customer);
            async move { found }
        })
        .unknown("free");
    let layer = layer(all((plan(&rows).own_numbers(40), other.own_numbers(40))));
    for customer in 0..40 * 40 {
        let name = format!("c{customer}");
        rows.set(&name, Row::Own(100, 2 + customer % 40));
        others.set(&name, Row::Own(100, 2 + customer / 40));
        assert_eq!(send(&layer, &name).await.status(), StatusCode::OK);
    }
    let sets = layer.current.with(|shared| {
        let sets = lock(&shared.own_sets.sets);
        (sets.slots.len(), sets.places.len())
    });
    assert_eq!(sets, (MOST_SETS, MOST_SETS), "of 1,600");
    for customer in [0, 1, 41, 1_599] {
        let burst = (2 + customer % 40).min(2 + customer / 40) as usize;
        assert_eq!(admitted(&layer, &format!("c{customer}")).await, burst - 1, "{customer}");
    }
}

#[cfg(feature = "tracing")]
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

#[cfg(feature = "tracing")]
impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            lock(&self.0).push(format!("{value:?}"));
        });
    }
}

/// A table may have a thousand wrong rows, and each is looked up again every second.
#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn numbers_that_are_not_used_are_logged_once_for_each_cause() {
    use tracing_subscriber::layer::SubscriberExt;

    let log = Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let rows = Rows::default();
    let layer = ThrottleLayer::new(plan(&rows).own_numbers(1)).unwrap();
    let layer = layer.backend(Refusing(memory(), Arc::default())).unwrap();
    for (customer, row) in [("zero", Row::Own(0, 5)), ("none", Row::Own(5, 0)), ("log", Row::Log(50))] {
        rows.set(customer, row);
    }
    for (customer, count) in [("refused", 40), ("many", 41), ("more", 42)] {
        rows.set(customer, Row::Own(count, count));
    }
    for _ in 0..3 {
        for customer in ["zero", "none", "log", "refused", "many", "more"] {
            assert_eq!(send(&layer, customer).await.status(), StatusCode::OK);
        }
        forget().await;
    }
    let logged = std::mem::take(&mut *lock(&log.0));
    for cause in ["rate count is 0: ", "own numbers have the algorithm of a tier", "1 different ones", "has no 40"] {
        assert_eq!(logged.iter().filter(|text| text.contains(cause)).count(), 1, "{cause}: {logged:#?}");
    }
    assert_eq!(logged.iter().filter(|text| text.contains("numbers")).count(), 4, "{logged:#?}");
}
