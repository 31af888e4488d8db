//! The limits of a layer with numbers of some customer's own in place of a plan's tiers.
//!
//! Such limits are the layer's own in all but the numbers: they stand beside them on the same backend, share their
//! permits and queues, and charge the same budgets. They are made when the first request needs them, and it costs nothing
//! to forget them: what a key has used is where it was.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use throttle_core::{Algorithm, Backend, ConfigError, PolicySet};

use super::announced::Announced;
use super::build::make_share;
use super::shared::Shared;
use crate::limit::{Applied, Keying};
use crate::lock::lock;

/// Numbers of a request's own, by the places of their limits.
pub(crate) type OwnNumbers = SmallVec<[(usize, Arc<Algorithm>); 1]>;

pub(crate) struct OwnSets<B: Backend> {
    sets: Mutex<Sets<B>>,
    has_failed: AtomicBool,
}

struct Sets<B: Backend> {
    /// What the layer decided by when these were made, if its parameters were replaced.
    in_force: Option<Arc<PolicySet>>,
    by_numbers: HashMap<Addresses, Set<B>>,
    /// Counts requests, to find the set that was not used for longest.
    requests: u64,
}

/// Each plan has all numbers once, so they are told apart by where they are.
type Addresses = SmallVec<[(usize, usize); 1]>;

struct Set<B: Backend> {
    shared: Arc<Shared<B>>,
    /// Keeps the addresses.
    _numbers: OwnNumbers,
    used: u64,
}

impl<B: Backend> Default for OwnSets<B> {
    fn default() -> Self {
        let sets = Mutex::new(Sets { in_force: None, by_numbers: HashMap::new(), requests: 0 });
        Self { sets, has_failed: AtomicBool::new(false) }
    }
}

impl<B: Backend> OwnSets<B> {
    /// Notes that a set could not be made. Whether it was the first.
    pub(super) fn is_first_failure(&self) -> bool {
        !self.has_failed.swap(true, Ordering::Relaxed)
    }
}

impl<B: Backend> Shared<B> {
    /// The same limits with these numbers.
    ///
    /// # Errors
    ///
    /// If the backend cannot enforce them.
    pub(super) fn with_own(&self, numbers: &OwnNumbers) -> Result<Arc<Self>, ConfigError> {
        let in_force = self.backend.in_force(&self.prepared);
        let mut sets = lock(&self.own_sets.sets);
        let is_same = match (&sets.in_force, &in_force) {
            (Some(then), Some(now)) => Arc::ptr_eq(then, now),
            (then, now) => then.is_none() && now.is_none(),
        };
        if !is_same {
            sets.by_numbers.clear();
            sets.in_force.clone_from(&in_force);
        }
        sets.requests += 1;
        let now = sets.requests;
        let addresses: Addresses =
            numbers.iter().map(|(place, numbers)| (*place, Arc::as_ptr(numbers).addr())).collect();
        if let Some(set) = sets.by_numbers.get_mut(&addresses) {
            set.used = now;
            return Ok(Arc::clone(&set.shared));
        }
        let base = in_force.as_deref().unwrap_or_else(|| B::set(&self.prepared));
        let shared = Arc::new(self.beside(base, numbers)?);
        if sets.by_numbers.len() >= most(&self.applied)
            && let Some(unused) = sets.by_numbers.iter().min_by_key(|(_, set)| set.used).map(|(key, _)| key.clone())
        {
            sets.by_numbers.remove(&unused);
        }
        let set = Set { shared: Arc::clone(&shared), _numbers: numbers.clone(), used: now };
        sets.by_numbers.insert(addresses, set);
        Ok(shared)
    }

    fn beside(&self, base: &PolicySet, numbers: &OwnNumbers) -> Result<Self, ConfigError> {
        let set = base.clone().with_own(numbers.iter().map(|(place, numbers)| (*place, **numbers)))?;
        let prepared = Arc::new(self.backend.prepare(set)?);
        let announced = Announced::new(B::set(&prepared).policies(), self.announced.options.clone());
        let mut own = Self { prepared, announced: Arc::new(announced), share: None, ..self.clone() };
        if let Some(share) = &self.share {
            own.options.local_store = Some(share.store().clone());
        }
        make_share(&mut own)?;
        Ok(own)
    }
}

/// As many as the plans may have numbers.
fn most(applied: &[Applied]) -> usize {
    let of_limit = |limit: &Applied| if let Keying::Tiered(lookup) = &limit.keying { lookup.max_own() } else { 0 };
    applied.iter().map(of_limit).sum::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;
    use std::time::Duration;

    use http::{Request, Response, StatusCode};
    use throttle_core::{Carry, Gcra, ManualClock, MemoryBackend, Rate};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::plans::{IntoTier, Plans, Tier, plans};
    use crate::{Constant, Header, LimitReport, ThrottleLayer, all, limit};

    type Answer = Result<Option<Tier>, Box<dyn std::error::Error + Send + Sync>>;

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
                Some(Row::Own(count, burst)) => Some(Tier::own(Gcra::new(Rate::per_hour(*count)).burst(*burst))?),
                Some(Row::Log(count)) => Some(Tier::own(throttle_core::SlidingLog::new(Rate::per_hour(*count)))?),
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

    fn layer(limits: impl crate::limit::IntoLimitTree) -> ThrottleLayer<Memory> {
        let memory = MemoryBackend::builder().clock(ManualClock::default()).build();
        ThrottleLayer::new(limits).unwrap().backend(memory).unwrap()
    }

    async fn send(layer: &ThrottleLayer<Memory>, customer: &str) -> Response<()> {
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        let request = Request::builder().header("x-customer", customer).body(()).unwrap();
        layer.layer(inner).oneshot(request).await.unwrap().map(drop)
    }

    /// Requests that are admitted until one is refused.
    async fn admitted(layer: &ThrottleLayer<Memory>, customer: &str) -> usize {
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
        for (carry, as_own, as_other, as_pro) in [
            // The 30 have no room for 31.
            (Carry::Keep, 19, 0, 68),
            (Carry::Proportional, 34, 19, 62),
            (Carry::Reset, 49, 29, 99),
        ] {
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
        let error = rows.find("zero").into_tier().unwrap_err();
        assert_eq!(error, crate::plans::LookupFailed);
        assert!(rows.find("none").unwrap_err().to_string().starts_with("burst is 0: "));
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
        let sets = layer.current.with(|shared| lock(&shared.own_sets.sets).by_numbers.len());
        assert!(sets <= 2, "{sets}");
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_that_may_not_be_used_are_refused_when_the_layer_is_built() {
        let rows = Rows::default();
        let error = ThrottleLayer::new(plan(&rows).own_numbers(65_537)).unwrap_err();
        assert_eq!((error.policy(), error.field(), error.value()), (Some("plan"), "own_numbers", "65537"));
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
}
