use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use throttle_core::{ConfigError, Key, PolicyName};

use super::applied::CostOf;
use super::condition::Condition;
use super::cost::IntoCost;
use super::on_missing::OnMissing;
use super::priority::{Priority, class_of};
use crate::extract::{Constant, KeyExtractor};

/// Limits how many requests are in flight at once, whatever their rate.
///
/// Use it alone, or beside other limits in an [`all`](crate::all). A request takes all its permits
/// in one step, after the other limits have admitted it. It holds them until its response body ends
/// or is dropped, or until the request is dropped before it has a response.
///
/// * If too few permits are free, the request gets a 503 before the other limits decide, and is not
///   charged.
/// * A request that another limit refuses never takes a permit, not even for a moment.
/// * Another request may take the last permits while the other limits decide. The request then gets
///   a 503, and its charge is refunded exactly: at once in memory, in the background over a store.
///   Until the refund, the charged limit has that much less left for the key, and may refuse
///   another request of it.
///
/// The body of a response that switches protocols ends at once. To hold the permit as long as the
/// connection, move [`InFlight`](crate::InFlight) into the task that serves it.
///
/// An [`any`](crate::any) may hold several `Concurrency` limits, which are tried in order; an `any`
/// that mixes them with limits on rates is an error when the layer is built. Put the `Concurrency`
/// beside the `any`, in an [`all`](crate::all).
///
/// Permits are counted in this process, whatever the backend: a store cannot tell when a process
/// that held permits has died. A layer and its clones share one count.
///
/// **Pair a limit for all clients with one for each client.** Otherwise one client can exhaust
/// `Concurrency::new(200)` over a single HTTP/2 connection, which carries as many streams as the
/// server allows. While the client keeps its receive window closed, no response body ends, and each
/// stream keeps its permit. A second limit `.by` the client's address bounds what one client can
/// hold:
///
/// ```
/// use throttle_tower::{ClientIp, Concurrency, Gcra, Rate, ThrottleLayer, all, limit};
///
/// let throttle = ThrottleLayer::new(all((
///     limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()),
///     Concurrency::new(200),
///     Concurrency::new(4).name("in-flight-per-ip").by(ClientIp::peer()),
/// )))?;
/// assert_eq!(throttle.in_flight("in-flight-per-ip"), Some(0));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "a limit does nothing until a layer is built with it"]
pub struct Concurrency {
    name: String,
    pub(crate) most: u64,
    key: Arc<dyn KeyExtractor>,
    cost: Option<CostOf>,
    /// The permits of every request, where that is a number.
    constant_cost: Option<u64>,
    when: Option<Arc<dyn Condition>>,
    /// Whether `when` depends on the route.
    pub(crate) for_some_routes: bool,
    on_missing: OnMissing,
    pub(crate) priority: Option<Arc<Priority>>,
}

/// The permits that a request needs of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) key: Key,
    pub(crate) permits: u64,
    /// The most that may be taken once the request has its own: all but the reserve of its class.
    pub(crate) most: u64,
}

impl Concurrency {
    /// Limits requests in flight to `most`, of all clients together.
    pub fn new(most: u64) -> Self {
        Self {
            name: "in-flight".to_owned(),
            most,
            key: Arc::new(Constant),
            cost: None,
            constant_cost: None,
            when: None,
            for_some_routes: false,
            on_missing: OnMissing::Share,
            priority: None,
        }
    }

    /// Sets the name that refusals and hooks use. Defaults to `in-flight`; two in one layer need
    /// two names.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Counts the requests of each key separately. Defaults to one count for all.
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// Sets how many permits a request holds: a number, or a function of the request's head; 0 for
    /// none. Defaults to 1.
    pub fn cost(mut self, cost: impl IntoCost) -> Self {
        self.constant_cost = cost.constant();
        self.cost = Some(cost.into_cost());
        self
    }

    /// Applies the limit only to requests of which `applies` is true. Defaults to all.
    pub fn when(mut self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(applies));
        self
    }

    /// Notes that [`when`](Self::when) depends on the route.
    #[cfg(feature = "rules")]
    pub(crate) fn for_some_routes(mut self) -> Self {
        self.for_some_routes = true;
        self
    }

    /// Sets what happens to requests without a key. Defaults to [`OnMissing::Share`].
    pub fn on_missing(mut self, rule: OnMissing) -> Self {
        self.on_missing = rule;
        self
    }

    /// Shares the permits between classes of requests, as
    /// [`Limit::priority`](crate::Limit::priority) does with units: a request takes its permits
    /// only while the reserve of its class stays free. Defaults to no classes.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Concurrency, ThrottleLayer};
    ///
    /// let class_of = |parts: &Parts| {
    ///     if parts.uri.path().starts_with("/export") {
    ///         "batch"
    ///     } else {
    ///         "interactive"
    ///     }
    /// };
    /// let in_flight =
    ///     Concurrency::new(200).priority([("interactive", 0), ("batch", 120)], class_of);
    /// assert!(ThrottleLayer::new(in_flight).is_ok());
    /// ```
    pub fn priority<N: Into<String>, C: AsRef<str>>(
        self,
        classes: impl IntoIterator<Item = (N, u64)>,
        class_of_request: impl Fn(&Parts) -> C + Send + Sync + 'static,
    ) -> Self {
        self.in_classes(Priority::new(classes, class_of(class_of_request)))
    }

    pub(crate) fn in_classes(mut self, priority: Arc<Priority>) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The name, once the settings are found to be right.
    ///
    /// # Errors
    ///
    /// If a setting of the limit is wrong.
    pub(crate) fn check(&self) -> Result<PolicyName, ConfigError> {
        let name = PolicyName::new(&self.name)?;
        self.key
            .check()
            .and_then(|()| self.on_missing.check())
            .map_err(|error| error.in_policy(&self.name))?;
        if self.most == 0 {
            let rule =
                "at least one request must be admitted; to refuse all, answer 503 in a handler";
            return Err(ConfigError::new("concurrency", 0, rule).in_policy(&self.name));
        }
        if let Some(priority) = &self.priority {
            let cost = self.constant_cost.unwrap_or(1);
            priority
                .check(self.most, cost)
                .map_err(|error| error.in_policy(&self.name))?;
        }
        Ok(name)
    }

    /// The key of a request to any route; `None` if it has none of its own, or if the key is the
    /// route.
    #[cfg(feature = "axum")]
    pub(crate) fn key_of_its_own(&self, parts: &Parts) -> Option<Key> {
        if self.key.uses_route() {
            None
        } else {
            self.key.extract(parts)
        }
    }

    /// The most permits that may be taken by requests of the same class: all but its reserve.
    pub(crate) fn most_for(&self, parts: &Parts) -> u64 {
        self.most
            - self
                .priority
                .as_ref()
                .map_or(0, |priority| priority.reserve(parts))
                .min(self.most)
    }

    /// What a request needs; `Ok(None)` if nothing.
    ///
    /// # Errors
    ///
    /// The status of the refusal, where a required key is missing.
    pub(crate) fn ask(&self, parts: &Parts) -> Result<Option<Need>, http::StatusCode> {
        if self
            .when
            .as_ref()
            .is_some_and(|applies| !applies.holds(parts))
        {
            return Ok(None);
        }
        let permits = self.cost.as_ref().map_or(1, |cost| cost(parts));
        let key = match (self.key.extract(parts), self.on_missing) {
            (Some(key), _) => key,
            (None, OnMissing::Share) => Key::missing(),
            (None, OnMissing::Skip) => return Ok(None),
            (None, OnMissing::Reject(status)) => return Err(status),
        };
        Ok((permits > 0).then(|| Need {
            key,
            permits,
            most: self.most_for(parts),
        }))
    }
}

impl fmt::Debug for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concurrency")
            .field("name", &self.name)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, StatusCode};

    use super::*;
    use crate::Header;

    fn ask(limit: &Concurrency, user: Option<&str>) -> Result<Option<Need>, StatusCode> {
        let request = user.into_iter().fold(Request::builder(), |request, user| {
            request.header("x-user", user)
        });
        limit.ask(&request.body(()).unwrap().into_parts().0)
    }

    fn need(key: Key, permits: u64) -> Result<Option<Need>, StatusCode> {
        Ok(Some(Need {
            key,
            permits,
            most: 5,
        }))
    }

    fn ada() -> Key {
        Key::builder().bytes(b"ada").finish()
    }

    #[test]
    fn request_takes_one_permit_of_all_requests_by_default() {
        assert_eq!(ask(&Concurrency::new(5), None), need(Key::CONSTANT, 1));
        assert_eq!(
            ask(&Concurrency::new(5).by(Header::new("x-user")), Some("ada")),
            need(ada(), 1)
        );
        assert_eq!(
            ask(&Concurrency::new(5).by(Header::new("x-user")), None),
            need(Key::missing(), 1)
        );
        assert!(
            !Concurrency::new(5).for_some_routes,
            "nor does it depend on the route"
        );
    }

    /// The rule for a missing key applies also to a request that needs no permit, and not to one
    /// without the limit.
    #[test]
    fn permits_are_asked_for_by_key_cost_and_condition() {
        let unauthorized = StatusCode::UNAUTHORIZED;
        let limit = |rule, cost: u64| {
            Concurrency::new(5)
                .by(Header::new("x-user"))
                .on_missing(rule)
                .cost(cost)
        };
        for (rule, with_three, without_any) in [
            (OnMissing::Share, need(Key::missing(), 3), Ok(None)),
            (OnMissing::Skip, Ok(None), Ok(None)),
            (
                OnMissing::Reject(unauthorized),
                Err(unauthorized),
                Err(unauthorized),
            ),
        ] {
            assert_eq!(
                ask(&limit(rule, 3), Some("ada")),
                need(ada(), 3),
                "{rule:?}"
            );
            assert_eq!(ask(&limit(rule, 0), Some("ada")), Ok(None), "{rule:?}");
            assert_eq!(ask(&limit(rule, 3), None), with_three, "{rule:?}");
            assert_eq!(ask(&limit(rule, 0), None), without_any, "{rule:?}");
            assert_eq!(
                ask(&limit(rule, 3).when(|_| false), None),
                Ok(None),
                "{rule:?}"
            );
            assert_eq!(
                ask(&limit(rule, 3).when(|_| true), None),
                with_three,
                "{rule:?}"
            );
        }
    }

    #[test]
    fn wrong_setting_is_an_error_with_the_name_and_what_to_do() {
        let error = |limit: Concurrency| limit.check().unwrap_err();
        assert_eq!(Concurrency::new(1).check().unwrap().as_str(), "in-flight");
        assert_eq!(
            Concurrency::new(1)
                .name("uploads")
                .check()
                .unwrap()
                .as_str(),
            "uploads"
        );
        assert_eq!(
            error(Concurrency::new(0)).to_string(),
            "policy \"in-flight\": concurrency is 0: at least one request must be admitted; to \
                refuse all, answer 503 \
             in a handler"
        );
        assert_eq!(error(Concurrency::new(1).name("")).field(), "policy name");
        let by_nothing = error(
            Concurrency::new(1)
                .name("uploads")
                .by(Header::new("two words")),
        );
        assert_eq!(
            (by_nothing.policy(), by_nothing.field()),
            (Some("uploads"), "header")
        );
    }

    #[test]
    fn debug_output_shows_the_name_and_the_bound() {
        let shown = format!("{:?}", Concurrency::new(7).name("uploads"));
        assert_eq!(shown, r#"Concurrency { name: "uploads", most: 7, .. }"#);
    }
}
