//! Permits of requests in flight.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
#[cfg(feature = "rules")]
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use smallvec::{SmallVec, smallvec};
use throttle_core::{AnyCharge, Key, PolicyName};

use crate::event::{Activity, LimitInfo, Observers};
#[cfg(feature = "rules")]
use crate::limit::explained::{ExplainedLimit, KeyLeft, Verdict};
use crate::limit::{Concurrency, Need, PermitTree, Priority};
use crate::lock::lock;

/// All of a layer's limits on requests in flight, and how many permits of each are taken.
pub(crate) struct Permits {
    /// The index of the first one among the layer's limits: those on a rate come before.
    first: usize,
    limits: Vec<PermitLimit>,
    tree: Option<PermitTree>,
    taken: Arc<Mutex<Counts>>,
}

struct PermitLimit {
    name: PolicyName,
    limit: Concurrency,
    /// The place of its count.
    count: usize,
}

/// The permits that are taken, by key. One lock for all, so that a request takes all its permits in
/// one step.
#[derive(Default)]
struct Counts {
    /// The place of each limit's count.
    places: HashMap<PolicyName, usize>,
    by_place: Vec<HashMap<Key, u64>>,
}

impl Counts {
    /// Where a limit counts: limits of one name, which replace each other, count together.
    fn place(&mut self, name: &PolicyName) -> usize {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        self.places.insert(name.clone(), self.by_place.len());
        self.by_place.push(HashMap::new());
        self.by_place.len() - 1
    }
}

/// What a request needs of each limit.
pub(crate) type Needs = SmallVec<[Option<Need>; 2]>;

type Taken = SmallVec<[(usize, Key, u64); 2]>;

impl Permits {
    pub(crate) fn new(
        first: usize,
        limits: Vec<(PolicyName, Concurrency)>,
        tree: Option<PermitTree>,
    ) -> Self {
        Self::counting(Arc::default(), first, limits, tree)
    }

    /// Limits that replace these while requests are in flight. One of the same name counts on.
    #[cfg(feature = "rules")]
    pub(crate) fn replaced_by(
        &self,
        first: usize,
        limits: Vec<(PolicyName, Concurrency)>,
        tree: Option<PermitTree>,
    ) -> Self {
        Self::counting(Arc::clone(&self.taken), first, limits, tree)
    }

    fn counting(
        taken: Arc<Mutex<Counts>>,
        first: usize,
        limits: Vec<(PolicyName, Concurrency)>,
        tree: Option<PermitTree>,
    ) -> Self {
        let mut counts = lock(&taken);
        let limit = |(name, limit)| PermitLimit {
            count: counts.place(&name),
            name,
            limit,
        };
        let limits = limits.into_iter().map(limit).collect();
        drop(counts);
        Self {
            first,
            limits,
            tree,
            taken,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// Whether a limit applies to some routes only.
    pub(crate) fn are_for_some_routes(&self) -> bool {
        self.limits.iter().any(|limit| limit.limit.for_some_routes)
    }

    /// The limits that have classes.
    pub(crate) fn priorities(&self) -> impl Iterator<Item = (&PolicyName, &Priority)> {
        self.limits
            .iter()
            .filter_map(|limit| Some((&limit.name, &**limit.limit.priority.as_ref()?)))
    }

    pub(crate) fn infos(&self) -> impl Iterator<Item = LimitInfo> {
        self.limits
            .iter()
            .map(|own| LimitInfo::of_permits(&own.name, &own.limit))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &PolicyName> {
        self.limits.iter().map(|limit| &limit.name)
    }

    /// How many permits of a limit are taken, of all keys together.
    pub(crate) fn taken(&self, name: &str) -> Option<u64> {
        let place = self.names().position(|own| own.as_str() == name)?;
        Some(
            self.lock().by_place[self.limits[place].count]
                .values()
                .sum(),
        )
    }

    /// The permits that a request needs.
    ///
    /// # Errors
    ///
    /// The name and the status, where a required key is missing.
    pub(crate) fn ask(&self, parts: &Parts) -> Result<Needs, (&PolicyName, StatusCode)> {
        self.limits
            .iter()
            .map(|limit| {
                limit
                    .limit
                    .ask(parts)
                    .map_err(|status| (&limit.name, status))
            })
            .collect()
    }

    /// What the limits would do with a request, and whether it would get all its permits.
    #[cfg(feature = "rules")]
    pub(crate) fn explain(&self, parts: &Parts) -> (Vec<ExplainedLimit>, bool) {
        let explained =
            self.limits.iter().map(
                |PermitLimit { name, limit, count }| match limit.ask(parts) {
                    Err(status) => ExplainedLimit::new(name, Verdict::RefusesWithoutKey(status)),
                    Ok(None) => ExplainedLimit::new(name, Verdict::Skips(String::new())),
                    Ok(Some(Need {
                        key,
                        permits: cost,
                        most,
                    })) => {
                        let (units, has_key) =
                            (self.free(most, *count, &key), key != Key::missing());
                        let retry_after = (cost <= units).then_some(Duration::ZERO);
                        let (of, resets_in) = (limit.most, Duration::ZERO);
                        let (reserve, is_excepted) = (of - most, false);
                        let left = KeyLeft {
                            cost,
                            has_key,
                            tier: 0,
                            is_excepted,
                            reserve,
                            units,
                            of,
                            retry_after,
                            resets_in,
                        };
                        ExplainedLimit::looked(
                            name,
                            left,
                            limit.priority.as_ref(),
                            Verdict::Refuses,
                        )
                    }
                },
            );
        let has_permits = self.ask(parts).is_ok_and(|needs| self.look(&needs).is_ok());
        (explained.collect(), has_permits)
    }

    /// How many permits are free for the key of a request, and of how many. Limits for which it has
    /// no key are left out.
    #[cfg(feature = "axum")]
    pub(super) fn left(&self, parts: &Parts) -> impl Iterator<Item = (&PolicyName, u64, u64)> {
        self.limits
            .iter()
            .filter_map(|PermitLimit { name, limit, count }| {
                let key = limit.key_of_its_own(parts)?;
                let most = limit.most_for(parts);
                Some((name, self.free(most, *count, &key), most))
            })
    }

    #[cfg(any(feature = "axum", feature = "rules"))]
    fn free(&self, most: u64, count: usize, key: &Key) -> u64 {
        most.saturating_sub(self.lock().by_place[count].get(key).copied().unwrap_or(0))
    }

    /// Looks whether there are enough permits, and takes none.
    ///
    /// # Errors
    ///
    /// The places of the limits that have too few left.
    pub(crate) fn look(&self, needs: &Needs) -> Result<(), Places> {
        self.choose(&self.lock(), needs).map(drop)
    }

    /// Takes all permits that a request needs in one step, or none.
    ///
    /// # Errors
    ///
    /// The places of the limits that have too few left.
    #[inline]
    pub(crate) fn enter(
        self: &Arc<Self>,
        needs: &Needs,
        observers: &Observers,
    ) -> Result<Option<InFlight>, Places> {
        if self.limits.is_empty() {
            Ok(None)
        } else {
            self.take(needs, observers)
        }
    }

    fn take(
        self: &Arc<Self>,
        needs: &Needs,
        observers: &Observers,
    ) -> Result<Option<InFlight>, Places> {
        let mut taken = self.lock();
        let mut own = Taken::new();
        for place in self.choose(&taken, needs)? {
            if let Some(Need { key, permits, .. }) = needs[place].clone() {
                *taken.by_place[self.limits[place].count]
                    .entry(key.clone())
                    .or_default() += permits;
                own.push((place, key, permits));
            }
        }
        drop(taken);
        if own.is_empty() {
            return Ok(None);
        }
        let (permits, observers) = (
            AssertUnwindSafe(Arc::clone(self)),
            AssertUnwindSafe(observers.clone()),
        );
        let held = Arc::new(HeldPermits {
            permits,
            own,
            observers,
        });
        for (place, _, permits) in &held.own {
            held.observers.happened(Activity::TookPermits {
                limit: self.first + place,
                permits: *permits,
            });
        }
        Ok(Some(InFlight(smallvec![held])))
    }

    /// The places of the limits of which the request needs permits.
    fn choose(&self, taken: &Counts, needs: &Needs) -> Result<Places, Places> {
        let Some(tree) = &self.tree else {
            return Ok(Places::new());
        };
        let mut choice = Choice {
            limits: &self.limits,
            taken,
            needs,
            places: Places::new(),
            full: Places::new(),
        };
        match choice.admits(tree) {
            Some(false) => Err(choice.full),
            Some(true) | None => Ok(choice.places),
        }
    }

    pub(crate) fn names_of(&self, full: &Places) -> Vec<PolicyName> {
        full.iter()
            .filter_map(|place| Some(self.limits.get(*place)?.name.clone()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        lock(&self.taken)
    }
}

/// Limits, by their places.
pub(crate) type Places = SmallVec<[usize; 2]>;

/// Chooses the permits of one request. Each limit is in one place of the composition, so choosing
/// changes no count that a later choice depends on.
struct Choice<'a> {
    limits: &'a [PermitLimit],
    taken: &'a Counts,
    needs: &'a Needs,
    places: Places,
    full: Places,
}

impl Choice<'_> {
    /// Whether a composition admits the request; `None` where none of it applies.
    fn admits(&mut self, tree: &PermitTree) -> Option<bool> {
        match tree {
            PermitTree::Limit(place) => self.one_admits(*place),
            PermitTree::All(members) => {
                let mut admits = None;
                for member in members {
                    match self.admits(member) {
                        Some(false) => return Some(false),
                        Some(true) => admits = Some(true),
                        None => {}
                    }
                }
                admits
            }
            PermitTree::Any(members, charge) => {
                let (mut admits, blamed) = (None, self.full.len());
                for member in members {
                    let before = self.places.len();
                    match self.admits(member) {
                        Some(true) => {
                            admits = Some(true);
                            if *charge == AnyCharge::First {
                                break;
                            }
                        }
                        Some(false) => {
                            self.places.truncate(before);
                            admits = admits.or(Some(false));
                        }
                        None => {}
                    }
                }
                if admits == Some(true) {
                    // Another member admits the request, so those without a permit are not to
                    // blame.
                    self.full.truncate(blamed);
                }
                admits
            }
        }
    }

    fn one_admits(&mut self, place: usize) -> Option<bool> {
        let Need { key, permits, most } = self.needs.get(place)?.as_ref()?;
        let taken = self.taken.by_place[self.limits[place].count]
            .get(key)
            .copied()
            .unwrap_or(0);
        let admits = taken
            .checked_add(*permits)
            .is_some_and(|after| after <= *most);
        if admits {
            self.places.push(place);
        } else {
            self.full.push(place);
        }
        Some(admits)
    }
}

/// Returns permits. A key without any taken is forgotten.
fn leave(taken: &mut HashMap<Key, u64>, key: &Key, cost: u64) {
    if let Some(count) = taken.get_mut(key) {
        *count = count.saturating_sub(cost);
        if *count == 0 {
            taken.remove(key);
        }
    }
}

/// The permits of one request in flight: see [`Concurrency`].
///
/// The layer inserts it into the extensions of a request that holds permits, and holds them itself
/// until the response body ends or is dropped. The permits are released when the last clone is
/// dropped. A handler whose work continues after the response, or on a connection that has switched
/// protocols, keeps a clone. With the feature `axum` it is an extractor.
///
/// If several layers hold permits for the request, it represents all of them.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Concurrency, InFlight, ThrottleLayer};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let throttle = ThrottleLayer::new(Concurrency::new(20).name("exports"))?;
/// let export = throttle.layer(service_fn(async |request: Request<()>| {
///     let permit: InFlight = request
///         .extensions()
///         .get()
///         .cloned()
///         .expect("the layer has a Concurrency limit");
///     assert_eq!(permit.permits().collect::<Vec<_>>(), [("exports", 1)]);
///     // The work goes on after the response, so it keeps the permit.
///     tokio::spawn(async move {
///         work().await;
///         drop(permit)
///     });
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// drop(export.oneshot(Request::new(())).await?);
/// assert_eq!(throttle.in_flight("exports"), Some(1));
/// # async fn work() { tokio::time::sleep(std::time::Duration::from_secs(1)).await }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "dropping it may return the permits"]
pub struct InFlight(SmallVec<[Arc<HeldPermits>; 1]>);

impl InFlight {
    /// The permits held, by the name of their limit, those of the outermost layer first.
    pub fn permits(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().flat_map(|permits| permits.by_name())
    }

    /// These permits and those of the layers around this one.
    pub(super) fn inside(self, outer: Option<&Self>) -> Self {
        let outer = outer.into_iter().flat_map(|outer| outer.0.iter().cloned());
        Self(outer.chain(self.0).collect())
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.permits()).finish()
    }
}

struct HeldPermits {
    /// The user's closures in it may be of any kind, but none runs when permits are returned.
    permits: AssertUnwindSafe<Arc<Permits>>,
    own: Taken,
    observers: AssertUnwindSafe<Observers>,
}

impl HeldPermits {
    fn by_name(&self) -> impl Iterator<Item = (&str, u64)> {
        self.own
            .iter()
            .map(|(place, _, cost)| (self.permits.limits[*place].name.as_str(), *cost))
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        let mut taken = self.permits.lock();
        for (place, key, cost) in &self.own {
            leave(
                &mut taken.by_place[self.permits.limits[*place].count],
                key,
                *cost,
            );
        }
        drop(taken);
        for (place, _, permits) in &self.own {
            self.observers.happened(Activity::ReturnedPermits {
                limit: self.permits.first + place,
                permits: *permits,
            });
        }
    }
}

#[cfg(feature = "axum")]
crate::axum_extractor::extractor! {
    InFlight,
    "the request holds no permit; add a Concurrency limit to the route's ThrottleLayer, or take \
        an Option<InFlight>";
    /// The rejection of a handler that takes an [`InFlight`] where the request holds no permit:
    /// status 500.
    ///
    /// ```
    /// use throttle_tower::{InFlight, MissingInFlight};
    ///
    /// async fn export(permit: Result<InFlight, MissingInFlight>) -> Result<(), MissingInFlight> {
    ///     drop(permit?);
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # use axum::extract::FromRequestParts;
    /// # let (mut parts, ()) = http::Request::new(()).into_parts();
    /// # let permit = InFlight::from_request_parts(&mut parts, &()).await;
    /// assert!(export(permit).await.is_err(), "there is no layer");
    /// # }
    /// ```
    MissingInFlight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_without_permits_taken_is_forgotten() {
        let key = Key::from("ada");
        let mut taken = HashMap::from([(key.clone(), 3)]);
        leave(&mut taken, &key, 2);
        assert_eq!(taken.get(&key), Some(&1));
        leave(&mut taken, &key, 1);
        assert!(taken.is_empty());
    }

    /// The first of these limits that are full, for requests that need as many permits of each, one
    /// after another.
    fn full(
        tree: &PermitTree,
        most: &[u64],
        needs: &[&[u64]],
    ) -> Vec<Result<Vec<usize>, Vec<usize>>> {
        let limit = |(place, most): (usize, &u64)| {
            let name = PolicyName::new(&place.to_string()).unwrap();
            (name, Concurrency::new(*most))
        };
        let permits = Permits::new(
            0,
            most.iter().enumerate().map(limit).collect(),
            Some(tree.clone()),
        );
        let mut taken = permits.lock();
        let mut ask = |needs: &&[u64]| {
            let need = |(permits, most): (&u64, &u64)| Need {
                key: Key::CONSTANT,
                permits: *permits,
                most: *most,
            };
            let needs = needs
                .iter()
                .zip(most)
                .map(|(permits, most)| (*permits > 0).then(|| need((permits, most))));
            let needs: Needs = needs.collect();
            let places = permits
                .choose(&taken, &needs)
                .map_err(|full| full.to_vec())?;
            for place in &places {
                let Need { key, permits, .. } = needs[*place].clone().unwrap();
                *taken.by_place[*place].entry(key).or_default() += permits;
            }
            Ok(places.to_vec())
        };
        needs.iter().map(&mut ask).collect()
    }

    #[test]
    fn limit_is_full_when_less_is_left_than_is_needed() {
        let one = PermitTree::Limit(0);
        assert_eq!(
            full(&one, &[3], &[&[2], &[2], &[1], &[1]]),
            [Ok(vec![0]), Err(vec![0]), Ok(vec![0]), Err(vec![0])]
        );
        assert_eq!(
            full(&one, &[3], &[&[3], &[0], &[u64::MAX]]),
            [Ok(vec![0]), Ok(vec![]), Err(vec![0])]
        );
    }

    #[test]
    fn all_take_of_each_that_applies_or_of_none() {
        let all = PermitTree::All(vec![PermitTree::Limit(0), PermitTree::Limit(1)]);
        let needs: [&[u64]; 4] = [&[1, 1], &[0, 1], &[1, 0], &[1, 1]];
        assert_eq!(
            full(&all, &[3, 1], &needs),
            [Ok(vec![0, 1]), Err(vec![1]), Ok(vec![0]), Err(vec![1])]
        );
        assert_eq!(full(&all, &[1, 1], &[&[0, 0]]), [Ok(vec![])]);
    }

    #[test]
    fn any_takes_of_the_first_or_of_each_that_has_some() {
        let any =
            |charge| PermitTree::Any(vec![PermitTree::Limit(0), PermitTree::Limit(1)], charge);
        let needs: [&[u64]; 4] = [&[1, 1]; 4];
        let expected = [Ok(vec![0]), Ok(vec![1]), Ok(vec![1]), Err(vec![0, 1])];
        assert_eq!(full(&any(AnyCharge::First), &[1, 2], &needs), expected);
        let expected = [
            Ok(vec![0, 1]),
            Ok(vec![1]),
            Err(vec![0, 1]),
            Err(vec![0, 1]),
        ];
        assert_eq!(
            full(&any(AnyCharge::EveryAdmitting), &[1, 2], &needs),
            expected
        );
        // One that is full stops none, wherever it stands.
        let expected = [Ok(vec![0, 1]), Ok(vec![0]), Err(vec![0, 1])];
        assert_eq!(
            full(&any(AnyCharge::EveryAdmitting), &[2, 1], &needs[..3]),
            expected
        );
        // A member that does not apply neither admits nor refuses.
        assert_eq!(
            full(
                &any(AnyCharge::First),
                &[1, 1],
                &[&[0, 1], &[0, 1], &[0, 0]]
            ),
            [Ok(vec![1]), Err(vec![1]), Ok(vec![])]
        );
    }

    /// What a member had chosen before it refused is not taken, and only those are to blame that no
    /// other stands in for.
    #[test]
    fn member_of_an_any_that_refuses_takes_nothing() {
        let both = PermitTree::All(vec![PermitTree::Limit(0), PermitTree::Limit(1)]);
        let any = PermitTree::Any(vec![both, PermitTree::Limit(2)], AnyCharge::EveryAdmitting);
        let beside = PermitTree::All(vec![any, PermitTree::Limit(3)]);
        let needs: [&[u64]; 3] = [&[1, 1, 1, 1]; 3];
        let expected = [Ok(vec![0, 1, 2, 3]), Ok(vec![2, 3]), Err(vec![3])];
        assert_eq!(full(&beside, &[9, 1, 9, 2], &needs), expected);
        assert_eq!(
            full(&beside, &[9, 1, 1, 9], &needs[..2]),
            [Ok(vec![0, 1, 2, 3]), Err(vec![1, 2])]
        );
    }
}
