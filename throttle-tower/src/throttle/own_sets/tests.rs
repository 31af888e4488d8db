use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Carry, Gcra, IntoAlgorithm, Key, ManualClock, MemoryBackend, Rate};
use tower::{Layer, ServiceExt, service_fn};

use super::super::shared::Shared;
use super::*;
use crate::down::Down;
use crate::plans::{Plans, Tier, plans};
use crate::{Constant, Header, LimitReport, OnError, Outcome, ThrottleLayer, all, any, limit};

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

/// Many more customers with different numbers than are kept ready, remembered or looked up for each request. No rule
/// of carrying over and no shared budget of unknown identities gives any of them anything back.
#[tokio::test(start_paused = true)]
async fn law_09_customers_keep_what_they_have_used_however_many_have_numbers_of_their_own() {
    for (carry, keep_for) in [(Carry::Keep, KEPT), (Carry::Reset, KEPT), (Carry::Reset, Duration::ZERO)] {
        let rows = Rows::default();
        let layer = layer(plan(&rows).cache(10_000, keep_for).on_change(carry).unknown_as_missing());
        rows.set("ada", Row::Own(20, 20));
        assert_eq!(admitted(&layer, "ada").await, 20);
        for customer in 0..1_500 {
            let name = format!("c{customer}");
            rows.set(&name, Row::Own(100, 2 + customer));
            let response = send(&layer, &name).await;
            assert_eq!(header(&response, "ratelimit").split(';').nth(1), Some(&*format!("r={}", 1 + customer)));
        }
        assert_eq!(admitted(&layer, "ada").await, 0, "{carry:?}");
        assert_eq!(admitted(&layer, "c0").await, 1, "{carry:?}");
        assert_eq!(layer.current.with(|shared| lock(&shared.own_sets.sets).slots.len()), MOST_SETS);
    }
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

/// A backend in memory that refuses limits of 40 units, and takes its time to prepare those of 41. It notes the
/// capacities of what it prepares.
#[derive(Clone)]
struct Refusing(Memory, Arc<Mutex<Vec<Vec<u64>>>>);

impl Backend for Refusing {
    type Prepared = <Memory as Backend>::Prepared;
    type Decide = <Memory as Backend>::Decide;
    type Done = <Memory as Backend>::Done;

    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError> {
        let capacities: Vec<u64> = set.policies().iter().map(|policy| policy.algorithm().capacity()).collect();
        if capacities.contains(&41) {
            std::thread::sleep(Duration::from_millis(50));
        }
        lock(&self.1).push(capacities);
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

/// Not in a tier: under this rule it would forget what the numbers before have counted.
#[tokio::test(start_paused = true)]
async fn numbers_that_the_backend_refuses_are_tried_once_and_change_nothing() {
    let rows = Rows::default();
    let backend = Refusing(memory(), Arc::default());
    let plan = plan(&rows).on_change(Carry::Reset);
    let layer = ThrottleLayer::new(plan).unwrap().backend(backend.clone()).unwrap();
    rows.set("ada", Row::Own(20, 20));
    assert_eq!(admitted(&layer, "ada").await, 20);
    rows.set("ada", Row::Own(40, 40));
    forget().await;
    for _ in 0..3 {
        assert_eq!(send(&layer, "ada").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    #[cfg(feature = "rules")]
    {
        let (parts, ()) = Request::builder().header("x-customer", "ada").body(()).unwrap().into_parts();
        let shared = layer.current.with(Arc::clone);
        let error = crate::rules::live::explain::explain(shared, &parts).await.err().unwrap();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("this backend has no 40"));
        assert_eq!(lock(&backend.1).pop(), Some(vec![40]), "to explain keeps nothing");
    }
    assert_eq!(*lock(&backend.1), [vec![10], vec![20], vec![40]], "each once");
    rows.set("ada", Row::Own(20, 20));
    forget().await;
    assert_eq!(admitted(&layer, "ada").await, 0, "still used up");
    assert_eq!(admitted(&layer, "eve").await, 10, "tiers are decided");
}

/// The store is healthy, and a row is wrong until somebody corrects it: no rule for a failed store lifts all limits.
#[tokio::test(start_paused = true)]
async fn numbers_that_the_backend_refuses_are_refused_whatever_happens_when_the_store_fails() {
    for rule in [OnError::Open, OnError::Closed, OnError::local(2)] {
        let rows = Rows::default();
        rows.set("ada", Row::Own(40, 40));
        let plan = plan(&rows).on_error(rule);
        let all = limit("all", Gcra::new(Rate::per_hour(1_000))).by(Constant).on_error(rule);
        let layer = ThrottleLayer::new(crate::all((all, plan))).unwrap();
        let layer = layer.backend(Refusing(memory(), Arc::default())).unwrap();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let layer = layer.on_decision({
            let heard = Arc::clone(&heard);
            move |event| {
                if let Outcome::FailedClosed(error) = event.outcome {
                    lock(&heard).push(error.to_string());
                }
            }
        });
        for _ in 0..3 {
            assert_eq!(send(&layer, "ada").await.status(), StatusCode::SERVICE_UNAVAILABLE, "{rule:?}");
        }
        let heard = std::mem::take(&mut *lock(&heard));
        assert!(heard.len() == 3 && heard.iter().all(|error| error.ends_with("; nothing was charged")), "{heard:?}");
        rows.set("ada", Row::Own(20, 20));
        forget().await;
        assert_eq!(admitted(&layer, "ada").await, 20, "{rule:?}");
    }
}

/// Numbers of a customer's own must not give the other limits a second share.
#[tokio::test(start_paused = true)]
async fn requests_under_own_numbers_use_the_common_share_while_the_store_fails() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(20, 20));
    rows.set("bob", Row::Own(30, 30));
    let all = limit("all", Gcra::new(Rate::per_hour(5)).burst(5)).by(Constant).on_error(OnError::local(1));
    let layer = ThrottleLayer::new(crate::all((all, plan(&rows).on_error(OnError::local(1))))).unwrap();
    let layer = layer.backend(Down::default()).unwrap();
    let mut admitted = [0; 3];
    for (admitted, customer) in admitted.iter_mut().zip(["ada", "bob", "eve"]) {
        for _ in 0..3 {
            *admitted += usize::from(send(&layer, customer).await.status() == StatusCode::OK);
        }
    }
    assert_eq!(admitted, [3, 2, 0]);
}

/// The numbers were checked against tiers that another layer has replaced since. Those carry over in proportion, and
/// would forget what the numbers count.
#[tokio::test(start_paused = true)]
async fn own_numbers_are_refused_where_they_may_not_stand_beside_the_tiers_in_force() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(50, 50));
    let memory = memory();
    let layer_of = |plan: Plans| ThrottleLayer::new(plan).unwrap().backend(memory.clone()).unwrap();
    let former = layer_of(plan(&rows));
    assert_eq!(send(&former, "ada").await.status(), StatusCode::OK);
    let later = layer_of(plan(&rows).on_change(Carry::Proportional).replace_existing());
    assert_eq!(send(&former, "ada").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(send(&later, "ada").await.status(), StatusCode::OK, "in a tier, as after a failed lookup");
    let former_again = layer_of(plan(&rows).replace_existing());
    assert_eq!(send(&former, "ada").await.status(), StatusCode::OK);
    assert_eq!(send(&former_again, "ada").await.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_that_need_the_same_numbers_at_once_make_one_set() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(41, 41));
    rows.set("bob", Row::Own(41, 41));
    let backend = Refusing(memory(), Arc::default());
    let layer = ThrottleLayer::new(plan(&rows)).unwrap().backend(backend.clone()).unwrap();
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let layer = layer.clone();
            tokio::spawn(async move { send(&layer, ["ada", "bob"][n % 2]).await.status() })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), StatusCode::OK);
    }
    assert_eq!(*lock(&backend.1), [vec![10], vec![41]]);
}

#[cfg(feature = "rules")]
#[tokio::test(start_paused = true)]
async fn law_14_an_explanation_keeps_no_set_of_numbers() {
    let rows = Rows::default();
    rows.set("ada", Row::Own(20, 20));
    let layer = layer(plan(&rows));
    let (parts, ()) = Request::builder().header("x-customer", "ada").body(()).unwrap().into_parts();
    for _ in 0..3 {
        let explained = crate::rules::live::explain::explain(layer.current.with(Arc::clone), &parts).await.unwrap();
        assert_eq!(explained.limits[0].left.as_ref().map(|left| (left.units, left.of)), Some((20, 20)));
    }
    assert!(layer.current.with(|shared| lock(&shared.own_sets.sets).slots.is_empty()));
    assert_eq!(admitted(&layer, "ada").await, 20);
}

/// Sets are large, and other requests wait for the lock.
#[test]
fn law_12_a_set_is_found_among_few_places_and_the_forgotten_ones_are_dropped_by_the_caller() {
    let numbers =
        |count| -> Numbers { smallvec::smallvec![(0, Gcra::new(Rate::per_hour(count)).into_algorithm().unwrap())] };
    let mut sets = Sets::<Shared<Memory>>::default();
    for count in 1..=MOST_SETS as u64 {
        assert!(sets.find_or_insert(None, numbers(count)).1.is_empty());
    }
    for count in 0..100 {
        sets.slots.iter_mut().for_each(|slot| slot.used = true);
        let (_, forgotten) = sets.find_or_insert(None, numbers(10_000 + count));
        let passed_over = sets.slots.iter().filter(|slot| !slot.used).count();
        // One of them has the new set.
        assert_eq!((forgotten.len(), passed_over), (1, MOST_PASSED_OVER - 1));
        assert_eq!((sets.slots.len(), sets.places.len()), (MOST_SETS, MOST_SETS));
    }
    let in_force = Arc::new(PolicySet::none());
    assert_eq!(sets.find_or_insert(Some(&in_force), numbers(1)).1.len(), MOST_SETS, "the tiers were replaced");
}

/// Combinations of two limits' numbers, of which a bounded number is kept: each is made again when it was forgotten.
#[tokio::test(start_paused = true)]
async fn combinations_of_numbers_are_bounded_and_displacing_them_forgets_nothing() {
    let (rows, others) = (Rows::default(), Rows::default());
    let other = others.clone();
    let other = plans("other", [("free", Gcra::new(Rate::per_hour(1_000)))])
        .by(Header::new("x-customer"))
        .lookup(move |customer: String| {
            let found = other.find(&customer);
            async move { found }
        })
        .unknown("free");
    let layer = layer(all((plan(&rows), other)));
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
async fn numbers_that_are_not_used_are_logged_once_a_minute() {
    use tracing_subscriber::layer::SubscriberExt;

    let log = Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let rows = Rows::default();
    let layer = ThrottleLayer::new(plan(&rows)).unwrap();
    let layer = layer.backend(Refusing(memory(), Arc::default())).unwrap();
    for (customer, row) in [("zero", Row::Own(0, 5)), ("none", Row::Own(5, 0)), ("log", Row::Log(50))] {
        rows.set(customer, row);
    }
    rows.set("refused", Row::Own(40, 40));
    let mut logged = Vec::new();
    for _ in 0..2 {
        for customer in ["zero", "none", "log"] {
            assert_eq!(send(&layer, customer).await.status(), StatusCode::OK);
        }
        for _ in 0..5 {
            assert_eq!(send(&layer, "refused").await.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        logged.extend(std::mem::take(&mut *lock(&log.0)));
        forget().await;
    }
    let logged: Vec<_> = logged.iter().filter(|text| text.contains("numbers that")).collect();
    let expected =
        [("rate count is 0: ", false), ("has no 40", false), ("rate count is 0: ", true), ("has no 40", true)];
    assert_eq!(logged.len(), expected.len(), "{logged:#?}");
    for (text, (cause, has_more)) in logged.iter().zip(expected) {
        assert!(text.contains(cause) && text.contains(" more such ") == has_more, "{logged:#?}");
    }
    assert!(logged[2].contains("2 more such") && logged[3].contains("4 more such"), "{logged:#?}");
}
