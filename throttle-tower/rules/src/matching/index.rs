//! Which limits of a file apply to a request. Those for some routes or paths are found by the
//! request's route and path, which takes as long whether there are few limits or many.

use std::collections::HashMap;
use std::sync::Arc;

use http::request::Parts;

use super::Matcher;
use super::path::{Numbers, PathPatterns};
use super::route;
use throttle_tower::extract::{Route, original_path};
use throttle_tower::limit::Select;

/// The limits of a composition, by their numbers: those for some routes by the routes, and others
/// for some paths by the paths.
pub(crate) struct Index {
    /// What is compared of a limit that is found; `None` if nothing more.
    matchers: Vec<Option<Arc<Matcher>>>,
    by_route: HashMap<Box<str>, Vec<u16>>,
    by_path: PathPatterns,
    /// All limits that are found by path.
    with_paths: Vec<u16>,
    /// Those for all routes and paths.
    others: Vec<u16>,
    uses_route: bool,
}

impl Index {
    /// `matchers` are those of the limits, in the order of the composition.
    pub(crate) fn new(matchers: Vec<Arc<Matcher>>) -> Self {
        let mut index = Self {
            by_route: HashMap::new(),
            by_path: PathPatterns::default(),
            with_paths: Vec::new(),
            others: Vec::new(),
            uses_route: matchers.iter().any(|matcher| matcher.uses_route()),
            matchers: Vec::new(),
        };
        for (matcher, number) in matchers.iter().zip(0..) {
            index.add(matcher, number);
        }
        let matchers = matchers.into_iter();
        index.matchers = matchers
            .map(|matcher| Some(matcher).filter(|matcher| matcher.has_more_than_is_found_by()))
            .collect();
        index
    }

    fn add(&mut self, matcher: &Matcher, number: u16) {
        if let Some(routes) = &matcher.routes {
            for route in routes {
                self.by_route.entry(route.clone()).or_default().push(number);
            }
        } else if let Some(paths) = &matcher.paths {
            self.by_path.add_all(paths, number);
            self.with_paths.push(number);
        } else {
            self.others.push(number);
        }
    }

    /// Adds those that may match by their route or path, some more than once.
    fn find(&self, parts: &Parts, found: &mut Numbers) {
        if !self.by_route.is_empty()
            && let Some(route) = Route::template(parts)
            && let Some(numbers) = self.by_route.get(&*route::without_names(route))
        {
            found.extend_from_slice(numbers);
        }
        if !self.with_paths.is_empty() && self.by_path.find(original_path(parts), found) {
            found.extend_from_slice(&self.with_paths);
        }
    }
}

impl Select for Index {
    fn select(&self, parts: &Parts, found: &mut dyn FnMut(usize)) {
        let mut numbers = Numbers::new();
        self.find(parts, &mut numbers);
        if !numbers.is_sorted_by(|one, next| one < next) {
            numbers.sort_unstable();
            numbers.dedup();
        }
        let mut compare = |number: &u16| {
            let limit = usize::from(*number);
            let matcher = self.matchers[limit].as_ref();
            if matcher.is_none_or(|matcher| matcher.matches_where_found(parts)) {
                found(limit);
            }
        };
        self.others.iter().for_each(&mut compare);
        numbers.iter().for_each(compare);
    }

    fn uses_route(&self) -> bool {
        self.uses_route
    }
}
