//! Which requests a limit applies to: `match` and `when`; and which the layer, `when` before all limits.

mod host;
mod method;
mod path;
mod read;
mod route;
mod spelling;

use std::collections::HashSet;

use http::Method;
use http::request::Parts;

use self::host::Hosts;
use self::path::PathPatterns;
pub(super) use self::read::{read, read_layer};
use super::registry::Condition;
use crate::extract::Route;
use crate::throttle::LayerCondition;

/// A request matches if each part that is there matches.
#[derive(Default)]
pub(super) struct Matcher {
    methods: Option<Vec<Method>>,
    /// Without the names of parameters.
    routes: Option<HashSet<Box<str>>>,
    paths: Option<PathPatterns>,
    hosts: Option<Hosts>,
    conditions: Vec<Expected>,
}

/// A condition, by its name, and what it must say.
pub(super) struct Expected {
    name: String,
    condition: Condition,
    is: bool,
}

impl Matcher {
    /// Whether there is anything to match.
    pub(super) fn is_empty(&self) -> bool {
        let Self { methods, routes, paths, hosts, conditions } = self;
        methods.is_none() && routes.is_none() && paths.is_none() && hosts.is_none() && conditions.is_empty()
    }

    /// Whether it depends on the route, which a layer around the router never knows.
    pub(super) fn uses_route(&self) -> bool {
        self.routes.is_some()
    }

    pub(super) fn matches(&self, parts: &Parts) -> bool {
        self.missed(parts).is_none()
    }

    /// The part of the limit that a request does not match; `None` if it matches.
    pub(super) fn mismatch(&self, parts: &Parts) -> Option<String> {
        Some(match self.missed(parts)? {
            Missed::Method => "its method is not among match.methods".to_owned(),
            Missed::Route if Route::template(parts).is_none() => {
                "it has no route, and match.routes needs one".to_owned()
            }
            Missed::Route => "its route is not among match.routes".to_owned(),
            Missed::Path => "its path is not among match.paths".to_owned(),
            Missed::Host => "its host is not among match.hosts".to_owned(),
            Missed::Condition(Expected { name, is: true, .. }) => format!("when: {name:?} does not hold"),
            Missed::Condition(Expected { name, .. }) => format!("when: {name:?} holds"),
        })
    }

    fn missed(&self, parts: &Parts) -> Option<Missed<'_>> {
        let Self { methods, routes, paths, hosts, conditions } = self;
        if methods.as_ref().is_some_and(|methods| !method::any_matches(methods, &parts.method)) {
            return Some(Missed::Method);
        }
        if routes.as_ref().is_some_and(|routes| !routes_contain(routes, parts)) {
            return Some(Missed::Route);
        }
        if paths.as_ref().is_some_and(|paths| !paths.match_path(path_of(parts))) {
            return Some(Missed::Path);
        }
        if hosts.as_ref().is_some_and(|hosts| !hosts.contain_host_of(parts)) {
            return Some(Missed::Host);
        }
        conditions.iter().find(|expected| !expected.is_met(parts)).map(Missed::Condition)
    }
}

/// The first part that a request does not match.
enum Missed<'m> {
    Method,
    Route,
    Path,
    Host,
    Condition(&'m Expected),
}

impl LayerCondition for Matcher {
    fn holds(&self, parts: &Parts) -> bool {
        self.matches(parts)
    }

    fn mismatch(&self, parts: &Parts) -> Option<String> {
        self.mismatch(parts)
    }

    fn is_from_file(&self) -> bool {
        true
    }
}

impl Expected {
    fn is_met(&self, parts: &Parts) -> bool {
        (self.condition)(parts) == self.is
    }
}

fn routes_contain(routes: &HashSet<Box<str>>, parts: &Parts) -> bool {
    Route::template(parts).is_some_and(|route| routes.contains(&*route::without_names(route)))
}

/// The path as the client sent it. Inside a nested router of axum, the URI is without the router's prefix.
fn path_of(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri.path();
    }
    parts.uri.path()
}
