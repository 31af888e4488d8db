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
use self::path::PathPattern;
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
    paths: Option<Vec<PathPattern>>,
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
        self.methods.as_ref().is_none_or(|methods| method::any_matches(methods, &parts.method))
            && self.routes.as_ref().is_none_or(|routes| routes_contain(routes, parts))
            && self.paths.as_ref().is_none_or(|paths| path::any_matches(paths, path_of(parts)))
            && self.hosts.as_ref().is_none_or(|hosts| hosts.contain_host_of(parts))
            && self.conditions.iter().all(|expected| expected.is_met(parts))
    }
}

impl Matcher {
    /// The part of the limit that a request does not match; `None` if it matches.
    pub(super) fn mismatch(&self, parts: &Parts) -> Option<String> {
        let Self { methods, routes, paths, hosts, conditions } = self;
        if methods.as_ref().is_some_and(|methods| !method::any_matches(methods, &parts.method)) {
            return Some("its method is not among match.methods".to_owned());
        }
        if routes.as_ref().is_some_and(|routes| !routes_contain(routes, parts)) {
            return Some(match Route::template(parts) {
                Some(_) => "its route is not among match.routes".to_owned(),
                None => "it has no route, and match.routes needs one".to_owned(),
            });
        }
        if paths.as_ref().is_some_and(|paths| !path::any_matches(paths, path_of(parts))) {
            return Some("its path is not among match.paths".to_owned());
        }
        if hosts.as_ref().is_some_and(|hosts| !hosts.contain_host_of(parts)) {
            return Some("its host is not among match.hosts".to_owned());
        }
        let missed = conditions.iter().find(|expected| !expected.is_met(parts))?;
        Some(format!("when: {:?} {}", missed.name, if missed.is { "does not hold" } else { "holds" }))
    }
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
