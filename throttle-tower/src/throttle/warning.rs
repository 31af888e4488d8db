use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use http::request::Parts;
use throttle_core::PolicyName;
use throttle_core::backend::Call;

use super::optional_steps::OptionalSteps;
use super::unknown_client;
use crate::client_ip::first_requests::{KnownSources, SourceVerdict};
use crate::client_ip::{AddressOrigin, ClientIp, ResolvedAddress};
use crate::extract::{self, Route};
use crate::limit::LimitSettings;
use crate::log;

/// A configuration that works, but probably not as intended: see
/// [`ThrottleBuilder::on_warning`](crate::ThrottleBuilder::on_warning).
///
/// Its `Display` is a sentence for a log, and says what to write instead. It never contains what a
/// client sent.
///
/// ```
/// use throttle_tower::Warning;
///
/// assert!(Warning::RouteUnknown.to_string().contains("add the layer with Router::layer"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Warning {
    /// A limit by [`Route`], or one of rules that applies to some routes, found no route for a
    /// request that then succeeded. The layer is around the router, or a fallback or a nested
    /// service answered, for which axum has no route. Such requests share one budget of a limit by
    /// `Route`, and a limit for some routes does not apply to them.
    RouteUnknown,
    /// A limit by the client's address got a request without any peer address, and has found no key
    /// before.
    PeerUnknown {
        /// The limit.
        policy: PolicyName,
    },
    /// A limit by the client's address got none in its first 100 requests, only addresses of
    /// proxies. Only requests that came from proxies are counted. The same few requests, when they
    /// come slowly, are taken for health checks of a proxy, and do not count. Of several limits of
    /// a layer with one source, only the first is warned of, and none if one of them has got an
    /// address.
    ClientUnknown {
        /// The limit.
        policy: PolicyName,
        /// The most frequent reason. [`Peer`](AddressOrigin::Peer) and
        /// [`UntrustedPeer`](AddressOrigin::UntrustedPeer) stand for internal addresses whose
        /// requests have the header of a proxy.
        origin: AddressOrigin,
        /// The header that should name the client.
        header: String,
    },
    /// A limit found no key in any of the first 100 requests that it applied to, for example
    /// because a header's name is misspelt.
    KeyNeverFound {
        /// The limit.
        policy: PolicyName,
        /// Its extractor, by its [description](crate::KeyExtractor::describe).
        extractor: String,
    },
    /// The function that names the class of a request returned a name that no class has. Such
    /// requests are in the lowest class: see [`Limit::priority`](crate::Limit::priority).
    UnknownClass {
        /// The limit.
        policy: PolicyName,
        /// The lowest class.
        class: String,
    },
    /// More processes share a limit by [`OnError::local`](crate::OnError::local) than it has units.
    /// The share of each holds at least one unit, so together they admit more than the limit while
    /// the store returns no decisions. This is noticed when the layer is built.
    ShareBelowOne {
        /// The limit.
        policy: PolicyName,
        /// The number given to `OnError::local`.
        processes: u32,
        /// The burst of the limit or, if it counts in windows, its units a window. Of a limit with
        /// tiers it is the smallest.
        capacity: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RouteUnknown => f.write_str(
                "a limit that depends on the route found none for a request that succeeded; such \
                    requests share one \
                 budget of a limit by Route, and a limit for some routes does not apply to them; \
                 add the layer with \
                 Router::layer or route_layer rather than around the router. For requests to \
                 nest_service and \
                 fallback_service, axum tells the layers of a router no route: serve a router \
                 there by Router::nest, \
                 or add the layer inside it, or limit by path, as match.paths of a rule file does",
            ),
            Self::PeerUnknown { policy } => write!(
                f,
                "the limit {:?} is by the client's address, and the request has no peer address; \
                    its on_missing rule \
                 applies, and by default all such requests share one budget. With axum, enable \
                 the feature `axum` of \
                 tower-throttle and serve with \
                 app.into_make_service_with_connect_info::<SocketAddr>(). With tonic, \
                 enable the feature `tonic`. With another server, insert a \
                 throttle_tower::extract::PeerAddr into the \
                 request's extensions before this layer, or key by an extractor of your own: \
                 from_fn(|parts: &Parts| \
                 …)",
                policy.as_str()
            ),
            Self::ClientUnknown {
                policy,
                origin,
                header,
            } => unknown_client::fmt(f, policy, *origin, header),
            Self::KeyNeverFound { policy, extractor } => write!(
                f,
                "the limit {:?} found no key in its first {REQUESTS_WITHOUT_KEY} requests; its \
                    extractor is \
                 {extractor}. Its on_missing rule applied to all of them, and by default they \
                 share one budget. Check \
                 the name of the header, or that what the extractor reads is in the request \
                 before this layer",
                policy.as_str()
            ),
            Self::UnknownClass { policy, class } => write!(
                f,
                "the function that names the class of a request returned a name that no class of \
                    the limit {:?} has; \
                 such requests are in the lowest class, {class:?}. Compare the names that it \
                 returns with those of the \
                 classes",
                policy.as_str()
            ),
            Self::ShareBelowOne {
                policy,
                processes,
                capacity,
            } => write!(
                f,
                "the limit {:?} has OnError::local({processes}), and its burst is {capacity}: while \
                    the store returns no decisions, each process admits at least 1 unit, so \
                    {processes} processes admit up to {processes} at one instant. Give \
                    OnError::local the number of processes that the requests of one key reach, at \
                    most {capacity}, and balance the load by that key; or raise the burst to \
                    {processes}; or refuse meanwhile, by OnError::Closed",
                policy.as_str()
            ),
        }
    }
}

/// So many requests without a key are no coincidence.
const REQUESTS_WITHOUT_KEY: u32 = 100;

/// The warning that a request with a key gives, once for each limit at most.
pub(super) fn key_found(
    limit: &LimitSettings,
    policy: &PolicyName,
    sources: &KnownSources,
    parts: &Parts,
) -> Option<Warning> {
    limit.key_history.found();
    match limit.client_ip() {
        Some(source) => unknown_client(limit, source, policy, sources, parts),
        None => {
            limit.key_history.settle();
            None
        }
    }
}

fn unknown_client(
    limit: &LimitSettings,
    source: &ClientIp,
    policy: &PolicyName,
    sources: &KnownSources,
    parts: &Parts,
) -> Option<Warning> {
    let verdict = limit
        .key_history
        .first_requests()
        .judge(source, extract::peer(parts), parts);
    if verdict == SourceVerdict::Open || !limit.key_history.settle() {
        return None;
    }
    match verdict {
        SourceVerdict::OnlyProxies(origin) if sources.must_warn(source, origin) => {
            let header = source.header_name().to_owned();
            Some(Warning::ClientUnknown {
                policy: policy.clone(),
                origin,
                header,
            })
        }
        SourceVerdict::Sound => {
            sources.add_sound(source);
            None
        }
        _ => None,
    }
}

/// The warning that a request without a key gives, once for each limit.
pub(super) fn missing_key(
    limit: &LimitSettings,
    policy: &PolicyName,
    sources: &KnownSources,
    parts: &Parts,
) -> Option<Warning> {
    if limit.key_history.is_settled() || limit.key_history.has_key() {
        return None;
    }
    let peer = extract::peer(parts);
    let resolved = limit
        .client_ip()
        .map(|source| (source, source.resolve(peer, &parts.headers)));
    let warning = match resolved {
        // A source that counts hops needs no peer, but the header.
        Some((
            source,
            ResolvedAddress {
                address: None,
                origin,
            },
        )) if origin != AddressOrigin::NoPeer => {
            return unknown_client(limit, source, policy, sources, parts);
        }
        _ if limit.by_peer && peer.is_none() => Warning::PeerUnknown {
            policy: policy.clone(),
        },
        _ if limit.key_history.missed() >= REQUESTS_WITHOUT_KEY => Warning::KeyNeverFound {
            policy: policy.clone(),
            extractor: limit.key_source.describe(),
        },
        _ => return None,
    };
    limit.key_history.settle().then_some(warning)
}

/// Where warnings go, and whether the route was warned of.
#[derive(Clone, Default)]
pub(crate) struct Watch {
    /// Defaults to the log.
    hook: Option<Arc<WarningHook>>,
    route_warned: Arc<AtomicBool>,
}

pub(super) type WarningHook = dyn Fn(&Warning) + Send + Sync;

impl Watch {
    /// What a `former` version of the limits has warned of is not warned of again.
    pub(super) fn new(hook: Option<Arc<WarningHook>>, former: Option<&Self>) -> Self {
        Self {
            hook,
            route_warned: former.map_or_else(Arc::default, |own| Arc::clone(&own.route_warned)),
        }
    }

    #[cold]
    pub(super) fn warn(&self, warning: &Warning) {
        match &self.hook {
            Some(hook) => hook(warning),
            None => log::warn(warning),
        }
    }

    /// Whether the route of a request is not known, and a limit depends on it.
    pub(super) fn suspects(
        &self,
        uses: OptionalSteps,
        applied: &[LimitSettings],
        calls: &[Call],
        parts: &Parts,
    ) -> bool {
        !self.route_warned.load(Ordering::Relaxed)
            && Route::template(parts).is_none()
            && (uses.for_some_routes
                || applied
                    .iter()
                    .zip(calls)
                    .any(|(how, call)| how.by_route && call.key().is_some()))
    }

    /// Warns once, if a request without a route succeeded.
    pub(super) fn confirm(&self, status: StatusCode) {
        if status.is_success() && !self.route_warned.swap(true, Ordering::Relaxed) {
            self.warn(&Warning::RouteUnknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_names_the_limit_and_what_it_reads() {
        let policy = PolicyName::new("per-ip").unwrap();
        let unknown = Warning::PeerUnknown {
            policy: policy.clone(),
        }
        .to_string();
        let start = "the limit \"per-ip\" is by the client's address, and the request has no peer \
            address; ";
        assert!(unknown.starts_with(start), "{unknown}");
        let never = Warning::KeyNeverFound {
            policy,
            extractor: "Header(\"x-user\")".to_owned(),
        }
        .to_string();
        let start = "the limit \"per-ip\" found no key in its first 100 requests; its extractor \
            is Header(\"x-user\"). ";
        assert!(never.starts_with(start), "{never}");
        let route = Warning::RouteUnknown.to_string();
        assert!(route.starts_with(
            "a limit that depends on the route found none for a request that succeeded; "
        ));
    }

    /// Versions of a layer warn once together, and another layer by itself. A request that did not
    /// succeed says nothing.
    #[test]
    fn unknown_route_is_warned_of_once() {
        let heard: Arc<std::sync::Mutex<Vec<Warning>>> = Arc::default();
        let hook = Arc::clone(&heard);
        let hook: Arc<WarningHook> =
            Arc::new(move |warning| hook.lock().unwrap().push(warning.clone()));
        let watch = Watch::new(Some(Arc::clone(&hook)), None);
        let next = Watch::new(Some(Arc::clone(&hook)), Some(&watch));
        let other = Watch::new(Some(hook), None);
        for (watch, status, warnings) in [
            (&watch, StatusCode::FOUND, 0),
            (&next, StatusCode::NOT_FOUND, 0),
            (&next, StatusCode::CREATED, 1),
            (&watch, StatusCode::OK, 1),
            (&other, StatusCode::OK, 2),
        ] {
            watch.confirm(status);
            assert_eq!(
                *heard.lock().unwrap(),
                vec![Warning::RouteUnknown; warnings],
                "{status}"
            );
        }
    }
}
