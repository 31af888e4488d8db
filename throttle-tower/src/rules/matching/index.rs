//! Which limits of a file may apply to a request, by its route and its path. To find them takes as
//! long whether there are few limits or many.

use std::collections::HashMap;

use http::request::Parts;

use super::path::{PathPatterns, path_of};
use super::route;
use crate::extract::Route;
use crate::limit::Numbers;

/// Limits, by their numbers: those for some routes by the routes, and others for some paths by the
/// paths.
#[derive(Default)]
pub(super) struct Index {
    by_route: HashMap<Box<str>, Vec<u16>>,
    by_path: PathPatterns,
    /// All limits that are found by path.
    with_paths: Vec<u16>,
}

impl Index {
    pub(super) fn add_routes<'r>(
        &mut self,
        routes: impl IntoIterator<Item = &'r Box<str>>,
        number: u16,
    ) {
        for route in routes {
            self.by_route.entry(route.clone()).or_default().push(number);
        }
    }

    pub(super) fn add_paths(&mut self, paths: &PathPatterns, number: u16) {
        self.by_path.add_all(paths, number);
        self.with_paths.push(number);
    }

    pub(super) fn find(&self, parts: &Parts, found: &mut Numbers) {
        if !self.by_route.is_empty()
            && let Some(route) = Route::template(parts)
            && let Some(numbers) = self.by_route.get(&*route::without_names(route))
        {
            found.extend_from_slice(numbers);
        }
        if !self.with_paths.is_empty() && self.by_path.find(path_of(parts), found) {
            found.extend_from_slice(&self.with_paths);
        }
    }
}
