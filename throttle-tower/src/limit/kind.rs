//! What a limit counts: requests over time, or requests at one time.

use throttle_core::algorithm::RefusingAlgorithm;
use throttle_core::{ConfigError, Policy, PolicyName};

use crate::throttle::{PERMIT_STEPS, PermitSteps};

/// The kind of a limit: an algorithm for a [rate](Rated), or [`InFlight`].
///
/// It is sealed: each [`RefusingAlgorithm`] is one. [`LeakyBucket`](throttle_core::LeakyBucket) is
/// no kind of limit, because it delays requests and a throttle refuses them: it is for a
/// [`ShapeLayer`](crate::ShapeLayer).
///
/// ```
/// use throttle_tower::limit::{LimitKind, Rated};
/// use throttle_tower::{Constant, FixedWindow, Gcra, Limit, Rate, ThrottleLayer, limit};
///
/// fn daily(kind: impl LimitKind<Family = Rated>) -> Limit {
///     limit("daily", kind).by(Constant).unit("reports")
/// }
/// assert!(ThrottleLayer::new(daily(Gcra::new(Rate::per_day(5)))).is_ok());
/// assert!(ThrottleLayer::new(daily(FixedWindow::new(Rate::per_day(5)))).is_ok());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of limit",
    label = "expected an algorithm such as `Gcra::new(Rate::per_second(10))`, or `InFlight::new(20)`",
    note = "write one of Gcra, TokenBucket, LeakyMeter, IntervalBucket, FixedWindow, \
        SlidingWindow, SlidingLog or CalendarQuota around a `Rate`; a bare rate does not say how it \
        is enforced",
    note = "`LeakyBucket` delays, and a throttle refuses: use `LeakyMeter` or `Gcra`, or a `ShapeLayer`"
)]
pub trait LimitKind: SealedKind {
    /// What a [`Limit`](crate::Limit) of the kind has settings for: [`Rated`] or [`InFlight`].
    type Family;
}

/// The family of limits on a rate: see [`LimitKind`].
///
/// ```
/// use throttle_tower::limit::Rated;
/// use throttle_tower::{Constant, Gcra, Limit, Rate, limit};
///
/// let limit: Limit<Rated> = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
/// assert!(throttle_tower::ThrottleLayer::new(limit.unit("calls")).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct Rated {
    _private: (),
}

/// Limits how many requests are in flight at one time, whatever their rate. What a request holds of
/// the limit is a [`Permit`](crate::Permit).
///
/// Use the limit alone, or next to other limits in an [`all`](crate::all). A request takes all its
/// permits in one step, after the other limits have admitted it. It holds them until its response
/// body ends or is dropped, or until the request is dropped before it has a response.
///
/// * If too few permits are free, the request gets a 503 before the other limits decide, and is not
///   charged.
/// * A request that another limit refuses never takes a permit, not even for a moment.
/// * Another request may take the last permits while the other limits decide. The request then gets
///   a 503, and its charge is refunded exactly: immediately in memory, in the background over a
///   store. Until the refund, the charged limit has that much less left for the key, and may refuse
///   another request of it.
///
/// The body of a response that switches protocols ends immediately. To hold the permit as long as
/// the connection, move the [`Permit`](crate::Permit) into the task that serves it.
///
/// The limit has a [key](crate::limit::Unkeyed::by), a [cost](crate::Limit::cost) in permits, a
/// [condition](crate::Limit::when), a rule for [missing keys](crate::Limit::on_missing) and
/// [classes](crate::Limit::priority), as a limit on a rate has. [`Constant`](crate::Constant) is
/// the key of a limit for all clients together.
///
/// An [`any`](crate::any) may hold several limits of this kind, which are tried in order. An `any`
/// that mixes them with limits on rates is an error when the layer is built. Put the limit next to
/// the `any`, in an [`all`](crate::all).
///
/// Permits are counted in this process, whatever the backend: a store cannot tell when a process
/// that held permits has died. A layer and its clones share one count.
///
/// **Pair a limit for all clients with one for each client.** Otherwise one client can exhaust 200
/// permits over a single HTTP/2 connection, which carries as many streams as the server allows.
/// While the client keeps its receive window closed, no response body ends, and each stream keeps
/// its permit. A second limit by the client's address bounds what one client can hold:
///
/// ```
/// use throttle_tower::{ClientIp, Constant, Gcra, InFlight, Rate, ThrottleLayer, all, limit};
///
/// let throttle = ThrottleLayer::new(all((
///     limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()),
///     limit("in-flight", InFlight::new(200)).by(Constant),
///     limit("in-flight-per-ip", InFlight::new(4)).by(ClientIp::peer()),
/// )))?;
/// assert_eq!(throttle.in_flight("in-flight-per-ip"), Some(0));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    most: u64,
}

impl InFlight {
    /// Limits requests in flight to `most` for each key. Building the layer fails if it is 0.
    #[must_use]
    pub const fn new(most: u64) -> Self {
        Self { most }
    }
}

impl SealedKind for InFlight {
    fn resolve(self, name: &str) -> Result<ResolvedKind, ConfigError> {
        let name = PolicyName::new(name)?;
        if self.most == 0 {
            let rule =
                "at least one request must be admitted; to refuse all, answer 503 in a handler";
            return Err(ConfigError::new("permits", 0, rule).in_policy(name.as_str()));
        }
        Ok(ResolvedKind::Permits(name, self.most, &PERMIT_STEPS))
    }
}

impl LimitKind for InFlight {
    type Family = Self;
}

impl<A: RefusingAlgorithm> SealedKind for A {
    fn resolve(self, name: &str) -> Result<ResolvedKind, ConfigError> {
        Policy::new(name, self).map(ResolvedKind::Units)
    }
}

impl<A: RefusingAlgorithm> LimitKind for A {
    type Family = Rated;
}

/// What a kind of limit is made into.
#[expect(unnameable_types, reason = "a part of what seals a trait")]
#[derive(Clone, Debug)]
pub enum ResolvedKind {
    /// Units over time, by a policy that the backend decides about.
    Units(Policy),
    /// Permits of requests in flight, and the most of a key.
    Permits(PolicyName, u64, &'static PermitSteps),
}

/// Seals [`LimitKind`]: it is public and cannot be named.
#[expect(unnameable_types, reason = "it seals a trait")]
pub trait SealedKind {
    /// # Errors
    ///
    /// If the name or a setting is wrong.
    fn resolve(self, name: &str) -> Result<ResolvedKind, ConfigError>;
}

impl ResolvedKind {
    pub(super) fn name(&self) -> &PolicyName {
        match self {
            Self::Units(policy) => policy.policy_name(),
            Self::Permits(name, ..) => name,
        }
    }

    /// What an unused key has: the least and the most of all tiers.
    pub(super) fn capacities(&self) -> (u64, u64) {
        let policy = match self {
            Self::Units(policy) => policy,
            Self::Permits(_, most, _) => return (*most, *most),
        };
        let tiers = policy.tiers().map(|(_, tier)| tier).chain([policy]);
        tiers.fold((u64::MAX, 0), |(least, most), tier| {
            let capacity = tier.algorithm().capacity();
            (least.min(capacity), most.max(capacity))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::request::Parts;
    use http::{Request, Response, StatusCode};
    use throttle_core::ConfigError;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::limit::Limit;
    use crate::{Constant, Header, OnMissing, ThrottleLayer, limit};

    #[test]
    fn wrong_limit_on_requests_in_flight_is_an_error_with_what_to_write() {
        let error = |limit: Limit<InFlight>| ThrottleLayer::new(limit).unwrap_err();
        let of = |name: &str, most| limit(name, InFlight::new(most)).by(Constant);
        assert_eq!(
            error(of("exports", 0)).to_string(),
            "policy \"exports\": permits is 0: at least one request must be admitted; to refuse \
             all, answer 503 in a handler"
        );
        assert_eq!(error(of("", 1)).field(), "policy name");
        let by_no_header = limit("uploads", InFlight::new(1)).by(Header::new("two words"));
        let policy_and_field =
            |error: &ConfigError| (error.policy().map(str::to_owned), error.field());
        let uploads = Some("uploads".to_owned());
        assert_eq!(
            policy_and_field(&error(by_no_header)),
            (uploads.clone(), "header")
        );
        let costly = error(of("uploads", 4).cost(5));
        assert_eq!(policy_and_field(&costly), (uploads.clone(), "cost"));
        assert!(costly.to_string().contains("at most 4 permits"), "{costly}");
        let classes = of("uploads", 4).priority([("high", 0), ("low", 4)], |_: &Parts| "low");
        assert_eq!(policy_and_field(&error(classes)), (uploads, "reserve"));
    }

    /// The status of a request, and how many permits it holds until its response is dropped.
    async fn permits_of(limit: Limit<InFlight>, user: Option<&str>) -> (u16, u64) {
        let layer = ThrottleLayer::new(limit).unwrap();
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(()))
        }));
        let request = user.into_iter().fold(Request::builder(), |request, user| {
            request.header("x-user", user)
        });
        let response = service.oneshot(request.body(()).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        (status, layer.in_flight("uploads").unwrap())
    }

    /// The rule for a missing key applies also to a request that needs no permit, and not to one to
    /// which the limit does not apply.
    #[tokio::test]
    async fn permits_are_taken_by_key_cost_condition_and_rule_for_missing_keys() {
        let limit = |rule, cost: u64| {
            limit("uploads", InFlight::new(5))
                .by(Header::new("x-user"))
                .on_missing(rule)
                .cost(cost)
        };
        for (rule, without_key) in [
            (OnMissing::Share, [(200, 3), (200, 0)]),
            (OnMissing::Skip, [(200, 0), (200, 0)]),
            (
                OnMissing::Reject(StatusCode::UNAUTHORIZED),
                [(401, 0), (401, 0)],
            ),
        ] {
            let [with_three, with_none] = without_key;
            assert_eq!(permits_of(limit(rule, 3), Some("ada")).await, (200, 3));
            assert_eq!(permits_of(limit(rule, 0), Some("ada")).await, (200, 0));
            assert_eq!(
                permits_of(limit(rule, 3), None).await,
                with_three,
                "{rule:?}"
            );
            assert_eq!(
                permits_of(limit(rule, 0), None).await,
                with_none,
                "{rule:?}"
            );
            let never = limit(rule, 3).when(|_: &Parts| false);
            assert_eq!(permits_of(never, None).await, (200, 0), "{rule:?}");
            let always = limit(rule, 3).when(|_: &Parts| true);
            assert_eq!(permits_of(always, None).await, with_three, "{rule:?}");
        }
    }
}
