//! Which requests a limit applies to: `match` and `when`.

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
pub(super) use self::read::read;
use super::registry::Condition;
use crate::extract::Route;

/// A request matches if each part that is there matches.
#[derive(Default)]
pub(super) struct Matcher {
    methods: Option<Vec<Method>>,
    /// Without the names of parameters.
    routes: Option<HashSet<Box<str>>>,
    paths: Option<Vec<PathPattern>>,
    hosts: Option<Hosts>,
    conditions: Vec<(Condition, bool)>,
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
            && self.conditions.iter().all(|(applies, expected)| applies(parts) == *expected)
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
