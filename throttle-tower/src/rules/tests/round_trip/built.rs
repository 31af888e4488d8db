//! What a model means: limits that the builders make, and what they ask of requests.

use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use throttle_core::{
    CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, LeakyMeter, SlidingLog, SlidingWindow, TokenBucket,
};

use super::model::{
    Address, Algorithm, AnyLimit, Cost, Duration, Failing, Group, Key, Matching, Missing, Model, Named, Options,
    Period, Rate,
};
use crate::client_ip::{ClientIp, IpPrefix, TrustedProxies};
use crate::extract::{KeyExtractor, MatchedRoute, Method, PeerAddr, Route};
use crate::limit::{Concurrency, Limit, LimitTree, all, any, is_preflight, limit};
use crate::plans::plans;
use crate::rules::Registry;
use crate::{Constant, Header, OnError, OnMissing};

/// What the files refer to by name.
pub(super) fn registry() -> Registry {
    Registry::new()
        .key("api-key", Header::new("x-api-key"))
        .key_async("session", |_| async { Some(7) })
        .cost("tokens", registered_cost)
        .condition("internal", is_internal)
        .lookup("plan-of", |_| async { Some("free") })
        .refund("cached", is_cached)
}

fn registered_cost(parts: &Parts) -> u64 {
    if parts.method == http::Method::POST { 3 } else { 2 }
}

fn is_internal(parts: &Parts) -> bool {
    parts.headers.contains_key("x-internal")
}

fn is_cached(status: StatusCode, _: &HeaderMap) -> bool {
    status == StatusCode::NOT_MODIFIED
}

impl Model {
    pub(super) fn built(&self) -> LimitTree {
        let one = |place: &Named| place.built(self);
        match &self.compose {
            Some(groups) if groups.len() == 1 => self.group(&groups[0]),
            Some(groups) => all(groups.iter().map(|group| self.group(group)).collect::<Vec<_>>()),
            None => match &self.limits[..] {
                [] => LimitTree::nothing(),
                [limit] => one(limit),
                limits => all(limits.iter().map(one).collect::<Vec<_>>()),
            },
        }
    }

    fn group(&self, group: &Group) -> LimitTree {
        let each = |groups: &[Group]| groups.iter().map(|group| self.group(group)).collect::<Vec<_>>();
        match group {
            Group::One(place) => self.limits[*place].built(self),
            Group::All(members) | Group::List(members) => all(each(members)),
            Group::Any(members, Some(true)) => any(each(members)).charge_every_admitting(),
            Group::Any(members, _) => any(each(members)),
        }
    }

    pub(super) fn client_ip(&self) -> ClientIp {
        let trusted = |by: &[&'static str]| TrustedProxies::new(by.iter().copied()).unwrap();
        let everyone = || TrustedProxies::danger_any_width(["0.0.0.0/0"]).unwrap();
        match &self.address {
            None | Some(Address::Alone("peer")) => ClientIp::peer(),
            Some(Address::Alone("fly-io")) => ClientIp::fly_io(),
            Some(Address::Alone(_)) => ClientIp::google_cloud_load_balancer(),
            Some(Address::Trusted("forwarded", by)) => ClientIp::forwarded(trusted(by)),
            Some(Address::Trusted(_, by)) => ClientIp::x_forwarded_for(trusted(by)),
            Some(Address::Hops("forwarded", hops)) => ClientIp::forwarded_hops(*hops).unwrap(),
            Some(Address::Hops(_, hops)) => ClientIp::x_forwarded_for_hops(*hops).unwrap(),
            Some(Address::Header(name, by)) => ClientIp::header(name, trusted(by)).unwrap(),
            Some(Address::Everyone("forwarded")) => ClientIp::forwarded(everyone()),
            Some(Address::Everyone(_)) => ClientIp::x_forwarded_for(everyone()),
        }
    }
}

impl Named {
    fn built(&self, model: &Model) -> LimitTree {
        let client_ip = model.client_ip();
        match &self.kind {
            AnyLimit::Limit { algorithm, key: Key::Future, key_deadline, options } => {
                let limit = limit(&*self.name, algorithm.built()).by_async(|_| async { Some(7) });
                let limit = options.set(limit, model);
                key_deadline.map_or(limit.clone(), |deadline| limit.key_deadline(deadline.built())).into()
            }
            AnyLimit::Limit { algorithm, key, options, .. } => {
                options.set(limit(&*self.name, algorithm.built()).by(key.built(&client_ip)), model).into()
            }
            AnyLimit::Plans { key, tiers, unknown, options } => {
                let each: Vec<_> =
                    tiers.iter().map(|(name, algorithm)| ((*name).to_owned(), algorithm.built())).collect();
                let plans = plans(&*self.name, each).by(key.built(&client_ip)).lookup(|_| async { Some("free") });
                options.set(plans.unknown(tiers[*unknown].0).into_limit(), model).into()
            }
            AnyLimit::InFlight { most, key, cost, matching, on_missing } => {
                let mut limit = Concurrency::new(*most).name(&*self.name);
                if let Some(key) = key {
                    limit = limit.by(key.built(&client_ip));
                }
                limit = match cost {
                    None => limit,
                    Some(Cost::Units(units)) => limit.cost(*units),
                    Some(Cost::Registered) => limit.cost(registered_cost),
                };
                if !matching.is_empty() {
                    let matching = matching.clone();
                    limit = if matching.routes.is_empty() { limit } else { limit.for_some_routes() };
                    limit = limit.when(move |parts| matching.holds(parts));
                }
                let rule = on_missing.or(model.defaults.on_missing).map(Missing::built);
                rule.map_or(limit.clone(), |rule| limit.on_missing(rule)).into()
            }
        }
    }
}

impl Options {
    fn set(&self, mut limit: Limit, model: &Model) -> Limit {
        let defaults = &model.defaults;
        limit = match self.cost {
            None => limit,
            Some(Cost::Units(units)) => limit.cost(units),
            Some(Cost::Registered) => limit.cost(registered_cost),
        };
        if !self.matching.is_empty() {
            let matching = self.matching.clone();
            limit = if matching.routes.is_empty() { limit } else { limit.for_some_routes() };
            limit = limit.when(move |parts| matching.holds(parts));
        }
        for refund in &self.refunds {
            limit = match *refund {
                "successful" => limit.refund_successful(),
                "failed" => limit.refund_failed(),
                "server-errors" => limit.refund_server_errors(),
                "aborted" => limit.refund_aborted(),
                _ => limit.refund_if(is_cached),
            };
        }
        if let Some(unit) = &self.unit {
            limit = limit.unit(unit.clone());
        }
        if let Some(rule) = self.on_missing.or(defaults.on_missing) {
            limit = limit.on_missing(rule.built());
        }
        if let Some(rule) = self.on_error.or(defaults.on_error) {
            limit = limit.on_error(rule.built());
        }
        if let Some(longest) = self.wait_up_to {
            limit = limit.wait_up_to(longest.built());
        }
        limit = if self.charge_refused == Some(true) { limit.charge_refused() } else { limit };
        limit = if self.settled_later == Some(true) { limit.settled_later() } else { limit };
        limit
    }
}

impl Matching {
    fn is_empty(&self) -> bool {
        [&self.methods, &self.routes, &self.paths, &self.hosts].into_iter().all(Vec::is_empty) && self.when.is_empty()
    }

    /// For the requests below, whose paths and hosts have one reading.
    fn holds(&self, parts: &Parts) -> bool {
        let one_of =
            |all: &[&'static str], holds: &dyn Fn(&str) -> bool| all.is_empty() || all.iter().any(|one| holds(one));
        let method = parts.method.as_str();
        let path: Vec<&str> = parts.uri.path().split('/').filter(|segment| !segment.is_empty()).collect();
        let host = parts.uri.host().unwrap_or("");
        let route = Route::template(parts).map(|route| route.replace("{id}", "{name}"));
        one_of(&self.methods, &|one| one == method || (one == "GET" && method == "HEAD"))
            && one_of(&self.routes, &|one| route.as_deref() == Some(one))
            && one_of(&self.paths, &|one| match one {
                "/login" => path == ["login"],
                "/users/*" => path.len() == 2 && path[0] == "users",
                "/api/**" => path.first() == Some(&"api"),
                _ => true,
            })
            && one_of(&self.hosts, &|one| match one.strip_prefix("*.") {
                Some(domain) => host.ends_with(&format!(".{domain}")),
                None => host == one.to_lowercase(),
            })
            && self
                .when
                .iter()
                .all(|(name, is)| *is == if *name == "internal" { is_internal(parts) } else { is_preflight(parts) })
    }
}

impl Algorithm {
    pub(super) fn built(&self) -> throttle_core::Algorithm {
        let set = |value: Option<u64>, usual: u64| value.unwrap_or(usual);
        let built = match self {
            Self::Gcra(rate, burst) => Gcra::new(rate.built()).burst(set(*burst, rate.count)).into_algorithm(),
            Self::TokenBucket(rate, burst) => {
                TokenBucket::new(rate.built()).burst(set(*burst, rate.count)).into_algorithm()
            }
            Self::LeakyMeter(rate, capacity) => {
                LeakyMeter::new(rate.built()).capacity(set(*capacity, rate.count)).into_algorithm()
            }
            Self::IntervalBucket { capacity, refill, interval, aligned } => {
                let bucket = IntervalBucket::new(*capacity).refill(*refill, interval.built());
                if *aligned == Some(true) { bucket.aligned() } else { bucket }.into_algorithm()
            }
            Self::FixedWindow(rate, offset) => {
                let micros = offset.map_or(0, |(is_earlier, by)| by.1 as i64 * if is_earlier { -1 } else { 1 });
                FixedWindow::new(rate.built()).offset_micros(micros).into_algorithm()
            }
            Self::SlidingWindow(rate, buckets) => {
                SlidingWindow::new(rate.built()).buckets(set(*buckets, 10)).into_algorithm()
            }
            Self::SlidingLog(rate) => SlidingLog::new(rate.built()).into_algorithm(),
            Self::CalendarQuota { count, period, offset } => {
                let quota = match period {
                    Period::Per("day") => CalendarQuota::daily(*count),
                    Period::Per("week") => CalendarQuota::weekly(*count),
                    Period::Per(_) => CalendarQuota::monthly(*count),
                    Period::Fixed(period) => CalendarQuota::fixed(*count, period.built()),
                    Period::Rolling(period) => CalendarQuota::rolling(*count, period.built()),
                };
                quota.utc_offset_minutes(offset.unwrap_or(0)).into_algorithm()
            }
        };
        built.unwrap()
    }
}

impl Rate {
    fn built(&self) -> throttle_core::Rate {
        throttle_core::Rate::new(self.count, self.period.built())
    }
}

impl Duration {
    fn built(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.1)
    }
}

impl Missing {
    fn built(self) -> OnMissing {
        match self {
            Self::Share => OnMissing::Share,
            Self::Skip => OnMissing::Skip,
            Self::Reject(status) => OnMissing::Reject(StatusCode::from_u16(status).unwrap()),
        }
    }
}

impl Failing {
    fn built(self) -> OnError {
        match self {
            Self::Open => OnError::Open,
            Self::Closed => OnError::Closed,
            Self::Local(processes) => OnError::local(processes),
        }
    }
}

impl Key {
    fn built(&self, client_ip: &ClientIp) -> BuiltKey {
        BuiltKey(self.clone(), client_ip.clone())
    }

    fn of(&self, parts: &Parts, client_ip: &ClientIp) -> Option<throttle_core::Key> {
        match self {
            Self::ClientIp => client_ip.extract(parts),
            Self::Networks(v4, v6) => {
                let prefix = IpPrefix::new(v4.unwrap_or(32), v6.unwrap_or(64)).unwrap();
                client_ip.clone().by_prefix(prefix).extract(parts)
            }
            Self::Constant => Constant.extract(parts),
            Self::Method => Method.extract(parts),
            Self::Route => Route.extract(parts),
            Self::Registered => Header::new("x-api-key").extract(parts),
            Self::Header(name, _) => Header::new(name).extract(parts),
            Self::Lowercase(name) => Header::new(name).normalize(str::to_ascii_lowercase).extract(parts),
            Self::Joined(keys) => {
                let keys: Option<Vec<_>> = keys.iter().map(|key| key.of(parts, client_ip)).collect();
                Some(keys?.iter().fold(throttle_core::Key::builder(), |joined, key| joined.key(key)).finish())
            }
            Self::FirstOf(keys) => keys.iter().find_map(|key| key.of(parts, client_ip)),
            Self::Future => panic!("it is a future's"),
        }
    }

    /// Whether the key or a part of it is one of these.
    fn has(&self, is: fn(&Self) -> bool) -> bool {
        match self {
            Self::Joined(keys) | Self::FirstOf(keys) => keys.iter().any(|key| key.has(is)),
            key => is(key),
        }
    }
}

struct BuiltKey(Key, ClientIp);

impl KeyExtractor for BuiltKey {
    fn extract(&self, parts: &Parts) -> Option<throttle_core::Key> {
        self.0.of(parts, &self.1)
    }

    fn uses_route(&self) -> bool {
        self.0.has(|key| matches!(key, Key::Route))
    }

    fn client_ip(&self) -> Option<&ClientIp> {
        self.0.has(|key| matches!(key, Key::ClientIp | Key::Networks(..))).then_some(&self.1)
    }
}

/// Requests that tell limits apart.
pub(super) fn requests() -> Vec<Parts> {
    let peer = |last| PeerAddr([10, 0, 0, last].into());
    let requests = [
        Request::get("http://api.example.com/users/7")
            .header("x-tenant", "Acme")
            .header("x-api-key", "live_1")
            .header("x-forwarded-for", "203.0.113.9, 198.51.100.7")
            .extension(MatchedRoute("/users/{id}".into()))
            .extension(peer(1)),
        Request::post("http://example.org/login")
            .header("x-user", "Ada")
            .header("forwarded", "for=203.0.113.77")
            .extension(MatchedRoute("/login".into()))
            .extension(peer(1)),
        Request::head("http://EXAMPLE.com/api/v1")
            .header("x-internal", "1")
            .header("cf-connecting-ip", "2001:db8:1::7")
            .extension(peer(1)),
        Request::options("http://api.example.com/api/v1/x")
            .header("origin", "http://a.example")
            .header("access-control-request-method", "PUT")
            .header("x-real-ip", "203.0.113.20")
            .extension(PeerAddr([192, 0, 2, 1].into())),
        Request::builder().method("PURGE").uri("http://other.example/").extension(MatchedRoute("/".into())),
    ];
    requests.map(|request| request.body(()).unwrap().into_parts().0).into()
}
