//! Which requests a limit applies to: `match` and `when`; and which the layer, `when` before all
//! limits.

mod host;
mod host_name;
mod index;
mod method;
mod path;
mod read;
mod route;
mod spelling;

use std::collections::HashSet;

use http::Method;
use http::request::Parts;

use self::host::Hosts;
pub(super) use self::index::Index;
use self::path::PathPatterns;
pub(super) use self::read::{MATCH, WHEN, read, read_layer};
use super::registry::Condition;
use throttle_tower::extract::{Route, original_path};

/// A request matches if each part that is there matches.
#[derive(Default)]
pub(super) struct Matcher {
    methods: Option<Vec<Method>>,
    /// Without the names of parameters.
    routes: Option<HashSet<Box<str>>>,
    paths: Option<PathPatterns>,
    hosts: Option<Hosts>,
    conditions: Vec<Expectation>,
}

/// A condition, by its name, and what it must say.
pub(super) struct Expectation {
    name: String,
    condition: Condition,
    is: bool,
}

impl Matcher {
    /// Whether there is anything to match.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            methods,
            routes,
            paths,
            hosts,
            conditions,
        } = self;
        methods.is_none()
            && routes.is_none()
            && paths.is_none()
            && hosts.is_none()
            && conditions.is_empty()
    }

    /// Whether it depends on the route, which a layer around the router never knows.
    pub(super) fn uses_route(&self) -> bool {
        self.routes.is_some()
    }

    pub(super) fn matches(&self, parts: &Parts) -> bool {
        self.missed(parts, false).is_none()
    }

    /// Whether a request for which the index has found the limit may not match it.
    fn has_more_than_is_found_by(&self) -> bool {
        self.methods.is_some()
            || self.hosts.is_some()
            || !self.conditions.is_empty()
            || self.routes.is_some() && self.paths.is_some()
    }

    /// The same for a request for which the index has found the limit.
    fn matches_where_found(&self, parts: &Parts) -> bool {
        self.missed(parts, true).is_none()
    }

    /// The part of the limit that a request does not match; `None` if it matches.
    pub(super) fn mismatch(&self, parts: &Parts) -> Option<String> {
        Some(match self.missed(parts, false)? {
            Mismatch::Method => "its method is not among match.methods".to_owned(),
            Mismatch::Route if Route::template(parts).is_none() => {
                "it has no route, and match.routes needs one".to_owned()
            }
            Mismatch::Route => "its route is not among match.routes".to_owned(),
            Mismatch::Path => "its path is not among match.paths".to_owned(),
            Mismatch::Host => "its host is not among match.hosts".to_owned(),
            Mismatch::Condition(Expectation { name, is: true, .. }) => {
                format!("when: {name:?} does not hold")
            }
            Mismatch::Condition(Expectation { name, .. }) => format!("when: {name:?} holds"),
        })
    }

    /// Of a limit that the index has found, what the index has compared is left out.
    fn missed(&self, parts: &Parts, is_found: bool) -> Option<Mismatch<'_>> {
        let Self {
            methods,
            routes,
            paths,
            hosts,
            conditions,
        } = self;
        if methods
            .as_ref()
            .is_some_and(|methods| !method::any_matches(methods, &parts.method))
        {
            return Some(Mismatch::Method);
        }
        if !is_found
            && routes
                .as_ref()
                .is_some_and(|routes| !routes_contain(routes, parts))
        {
            return Some(Mismatch::Route);
        }
        let has_path = |paths: &PathPatterns| {
            is_found && routes.is_none() || paths.match_path(original_path(parts))
        };
        if paths.as_ref().is_some_and(|paths| !has_path(paths)) {
            return Some(Mismatch::Path);
        }
        if hosts
            .as_ref()
            .is_some_and(|hosts| !hosts.contain_host_of(parts))
        {
            return Some(Mismatch::Host);
        }
        conditions
            .iter()
            .find(|expected| !expected.is_met(parts))
            .map(Mismatch::Condition)
    }
}

/// The first part that a request does not match.
enum Mismatch<'m> {
    Method,
    Route,
    Path,
    Host,
    Condition(&'m Expectation),
}

impl Expectation {
    fn is_met(&self, parts: &Parts) -> bool {
        (self.condition)(parts) == self.is
    }
}

fn routes_contain(routes: &HashSet<Box<str>>, parts: &Parts) -> bool {
    Route::template(parts).is_some_and(|route| routes.contains(&*route::without_names(route)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Request;
    use proptest::prelude::*;

    use super::*;
    use throttle_tower::extract::MatchedRoute;
    use throttle_tower::limit::Select;

    const ROUTES: [&str; 4] = ["/", "/users/{}", "/users/{}/posts", "/files/{*}"];
    const PATTERNS: [&str; 8] = ["/", "/**", "/a", "/a/**", "/a/*", "/*/b", "/a/b", "/a/b/c"];
    const PATHS: [&str; 12] = [
        "/",
        "/a",
        "/a/",
        "/a/b",
        "/a/b/c",
        "/x/b",
        "/a%2fb",
        "/x/../a/b",
        "//a//b",
        "/a;x/b",
        "/%61/b/c",
        "/a/b/../x",
    ];
    const METHODS: [Method; 2] = [Method::GET, Method::POST];

    fn some<T: Clone + std::fmt::Debug + 'static>(
        of: &'static [T],
    ) -> impl Strategy<Value = Option<Vec<T>>> {
        prop::option::of(prop::sample::subsequence(of.to_vec(), 1..=of.len()))
    }

    type Written = (
        Option<Vec<Method>>,
        Option<Vec<&'static str>>,
        Option<Vec<&'static str>>,
    );

    fn matcher((methods, routes, patterns): Written) -> Matcher {
        let paths = patterns.map(|patterns| {
            let mut paths = PathPatterns::default();
            patterns
                .iter()
                .for_each(|pattern| paths.add(pattern).unwrap());
            paths
        });
        let routes = routes.map(|routes| routes.into_iter().map(Into::into).collect());
        Matcher {
            methods,
            routes,
            paths,
            ..Matcher::default()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn index_finds_the_limits_that_match_and_only_those(
            matchers in prop::collection::vec((some(&METHODS), some(&ROUTES), some(&PATTERNS)), 1..12),
            requests in prop::collection::vec((0..2_usize, prop::option::of(0..4_usize), 0..PATHS.len() + 1), 1..20),
        ) {
            let matchers: Vec<_> = matchers.into_iter().map(matcher).map(Arc::new).collect();
            let index = Index::new(matchers.clone());
            for (method, route, path) in requests {
                // Of too many segments, so that it fits all patterns.
                let path = PATHS.get(path).map_or_else(|| format!("/%2f{}", "/a".repeat(1_000)), ToString::to_string);
                let mut request = Request::builder().method(METHODS[method].clone()).uri(path);
                if let Some(route) = route {
                    request = request.extension(MatchedRoute(ROUTES[route].into()));
                }
                let parts = request.body(()).unwrap().into_parts().0;
                let mut found = Vec::new();
                index.select(&parts, &mut |limit| found.push(limit));
                found.sort_unstable();
                let matching = matchers.iter().enumerate().filter(|(_, one)| one.matches(&parts));
                let expected: Vec<usize> = matching.map(|(limit, _)| limit).collect();
                prop_assert_eq!(found, expected, "{:?}", parts.uri);
            }
        }
    }
}
