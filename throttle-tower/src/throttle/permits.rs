//! Permits of requests in flight.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};

use http::StatusCode;
use http::request::Parts;
use smallvec::{SmallVec, smallvec};
use throttle_core::{AnyCharge, Key, PolicyName};

use crate::limit::{Concurrency, PermitTree};
use crate::lock::lock;

/// All of a layer's limits on requests in flight, and how they are composed.
pub(crate) struct Gates {
    gates: Vec<Gate>,
    rule: Option<PermitTree>,
    /// One lock for all, so that a request takes all that it needs in one step.
    taken: Mutex<Vec<HashMap<Key, u64>>>,
}

struct Gate {
    name: PolicyName,
    how: Concurrency,
}

/// What a request needs of each.
pub(crate) type Needs = SmallVec<[Option<(Key, u64)>; 2]>;

type Taken = SmallVec<[(usize, Key, u64); 2]>;

impl Gates {
    pub(crate) fn new(gates: Vec<(PolicyName, Concurrency)>, rule: Option<PermitTree>) -> Self {
        let gates: Vec<Gate> = gates.into_iter().map(|(name, how)| Gate { name, how }).collect();
        let taken = Mutex::new(gates.iter().map(|_| HashMap::new()).collect());
        Self { gates, rule, taken }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.gates.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &PolicyName> {
        self.gates.iter().map(|gate| &gate.name)
    }

    /// How many permits of one are taken, of all keys together.
    pub(crate) fn taken(&self, name: &str) -> Option<u64> {
        let place = self.names().position(|own| own.as_str() == name)?;
        Some(self.lock()[place].values().sum())
    }

    /// What the request needs.
    ///
    /// # Errors
    ///
    /// The name and the status, where a required key is missing.
    pub(crate) fn ask(&self, parts: &Parts) -> Result<Needs, (&PolicyName, StatusCode)> {
        self.gates.iter().map(|gate| gate.how.ask(parts).map_err(|status| (&gate.name, status))).collect()
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
    pub(crate) fn enter(self: &Arc<Self>, needs: &Needs) -> Result<Option<InFlight>, Places> {
        if self.gates.is_empty() { Ok(None) } else { self.take(needs) }
    }

    fn take(self: &Arc<Self>, needs: &Needs) -> Result<Option<InFlight>, Places> {
        let mut taken = self.lock();
        let mut own = Taken::new();
        for place in self.choose(&taken, needs)? {
            if let Some((key, cost)) = needs[place].clone() {
                *taken[place].entry(key.clone()).or_default() += cost;
                own.push((place, key, cost));
            }
        }
        drop(taken);
        Ok((!own.is_empty())
            .then(|| InFlight(smallvec![Arc::new(Permits { gates: AssertUnwindSafe(Arc::clone(self)), own })])))
    }

    /// The places of the limits of which the request needs permits.
    fn choose(&self, taken: &[HashMap<Key, u64>], needs: &Needs) -> Result<Places, Places> {
        let Some(rule) = &self.rule else { return Ok(Places::new()) };
        let mut choice = Choice { gates: &self.gates, taken, needs, places: Places::new(), full: Places::new() };
        match choice.admits(rule) {
            Some(false) => Err(choice.full),
            Some(true) | None => Ok(choice.places),
        }
    }

    pub(crate) fn names_of(&self, full: &Places) -> Vec<PolicyName> {
        full.iter().filter_map(|place| Some(self.gates.get(*place)?.name.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HashMap<Key, u64>>> {
        lock(&self.taken)
    }
}

/// LimitTree, by their places.
pub(crate) type Places = SmallVec<[usize; 2]>;

/// Chooses the permits of one request. A limit stands at one place of the composition, so choosing changes no count that
/// a later choice depends on.
struct Choice<'a> {
    gates: &'a [Gate],
    taken: &'a [HashMap<Key, u64>],
    needs: &'a Needs,
    places: Places,
    full: Places,
}

impl Choice<'_> {
    /// Whether a composition admits the request; `None` where none of it applies.
    fn admits(&mut self, rule: &PermitTree) -> Option<bool> {
        match rule {
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
            PermitTree::Any(members, whom) => {
                let (mut admits, blamed) = (None, self.full.len());
                for member in members {
                    let before = self.places.len();
                    match self.admits(member) {
                        Some(true) => {
                            admits = Some(true);
                            if *whom == AnyCharge::First {
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
                    // Another member admits the request, so those without a permit are not to blame.
                    self.full.truncate(blamed);
                }
                admits
            }
        }
    }

    fn one_admits(&mut self, place: usize) -> Option<bool> {
        let (key, cost) = self.needs.get(place)?.as_ref()?;
        let taken = self.taken[place].get(key).copied().unwrap_or(0);
        let admits = taken.checked_add(*cost).is_some_and(|after| after <= self.gates[place].how.most);
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

/// The permits of one request that is in flight: see [`Concurrency`].
///
/// The layer puts it into the extensions of a request that holds permits, and holds them itself until the response body ends
/// or is dropped. Permits return when the last clone is dropped: a handler that goes on working after the response, or on a
/// connection that has switched protocols, keeps a clone. With the feature `axum` it is an extractor.
///
/// Inside several layers it stands for the permits of all of them.
///
/// ```
/// # #[cfg(feature = "axum")] mod example {
/// use axum::response::Response;
/// use throttle_tower::InFlight;
///
/// async fn export(permit: InFlight) {
///     tokio::spawn(async move {
///         // the long work that the limit is about
///         drop(permit);
///     });
/// }
/// # }
/// ```
#[derive(Clone)]
#[must_use = "dropping it may return the permits"]
pub struct InFlight(SmallVec<[Arc<Permits>; 1]>);

impl InFlight {
    /// The permits held, by the name of their limit, those of the outermost layer first.
    pub fn permits(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().flat_map(|permits| permits.by_name())
    }

    /// These and those of the layers around this one.
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

struct Permits {
    /// The user's closures in there may be of any kind, but none runs when permits are returned.
    gates: AssertUnwindSafe<Arc<Gates>>,
    own: Taken,
}

impl Permits {
    fn by_name(&self) -> impl Iterator<Item = (&str, u64)> {
        self.own.iter().map(|(place, _, cost)| (self.gates.gates[*place].name.as_str(), *cost))
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let mut taken = self.gates.lock();
        for (place, key, cost) in &self.own {
            leave(&mut taken[*place], key, *cost);
        }
    }
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(feature = "axum")]
mod extract {
    use std::convert::Infallible;

    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use http::StatusCode;
    use http::request::Parts;

    use super::InFlight;

    impl<S: Sync> FromRequestParts<S> for InFlight {
        /// Status 500 without a body: there is no [`Concurrency`](crate::Concurrency) limit around the handler. The log says
        /// so.
        type Rejection = StatusCode;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
            let missing = "the request holds no permit; add a Concurrency limit to the route's ThrottleLayer, or take an \
                           Option<InFlight>";
            parts.extensions.get().cloned().ok_or_else(|| {
                crate::log::error(&missing);
                StatusCode::INTERNAL_SERVER_ERROR
            })
        }
    }

    impl<S: Sync> OptionalFromRequestParts<S> for InFlight {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
            Ok(parts.extensions.get().cloned())
        }
    }
}
