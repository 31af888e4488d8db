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
            && self
                .routes
                .as_ref()
                .is_none_or(|routes| Route::template(parts).is_some_and(|route| routes.contains(route)))
            && self.paths.as_ref().is_none_or(|paths| path::any_matches(paths, parts.uri.path()))
            && self.hosts.as_ref().is_none_or(|hosts| hosts.contain_host_of(parts))
            && self.conditions.iter().all(|(applies, expected)| applies(parts) == *expected)
    }
}
