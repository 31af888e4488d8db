use std::sync::Arc;

use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;

/// The template of the route that serves the request, such as `/users/{id}`. The path itself is not
/// used, because each new path would be a new budget.
///
/// axum provides it to layers inside its router (feature `axum`). With another router, put a
/// [`MatchedRoute`] into the request. For gRPC, which has methods and no templates, see
/// [`Route::grpc`]. Requests that matched no route share the budget `<unmatched>`. If such a
/// request succeeds, the layer gives a [warning](crate::ThrottleBuilder::on_warning).
///
/// ```
/// use throttle_tower::extract::MatchedRoute;
/// use throttle_tower::{Key, KeyExtractor, Route};
///
/// let request = http::Request::get("/users/7")
///     .extension(MatchedRoute("/users/{id}".into()))
///     .body(())?;
/// assert_eq!(
///     Route.extract(&request.into_parts().0),
///     Some(Key::from("/users/{id}"))
/// );
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Route;

/// The template of the matched route, as an extension of the request, where the router is not
/// axum's: see [`Route`].
///
/// ```
/// use throttle_tower::extract::MatchedRoute;
/// use throttle_tower::{KeyExtractor, Route};
///
/// let key = |path: &str| {
///     let request = http::Request::get(path)
///         .extension(MatchedRoute("/users/{id}".into()))
///         .body(())
///         .unwrap();
///     Route.extract(&request.into_parts().0)
/// };
/// assert_eq!(key("/users/7"), key("/users/8"));
/// ```
#[derive(Clone, Debug)]
pub struct MatchedRoute(pub Arc<str>);

impl Route {
    /// The key of requests that matched no route.
    pub const UNMATCHED: &str = "<unmatched>";

    /// Returns the template of the route that serves the request, as [`Route`] finds it; `None` if
    /// no route is known.
    ///
    /// Compare this, and not the path, where a cost or a condition depends on the route: a router
    /// may serve one route for several spellings of a path, of which a client would choose one that
    /// is not compared.
    ///
    /// ```
    /// use throttle_tower::{Constant, Gcra, Rate, Route, limit};
    ///
    /// let exports = limit("exports", Gcra::new(Rate::per_minute(60)))
    ///     .by(Constant)
    ///     .cost(|parts: &http::request::Parts| {
    ///         if Route::template(parts) == Some("/export/{id}") {
    ///             20
    ///         } else {
    ///             1
    ///         }
    ///     });
    ///
    /// let (parts, ()) = http::Request::get("/export/7").body(())?.into_parts();
    /// assert_eq!(Route::template(&parts), None, "no router has seen it");
    /// # Ok::<(), http::Error>(())
    /// ```
    #[must_use]
    pub fn template(parts: &Parts) -> Option<&str> {
        if let Some(MatchedRoute(template)) = parts.extensions.get() {
            return Some(template);
        }
        #[cfg(feature = "axum")]
        if let Some(path) = parts.extensions.get::<axum::extract::MatchedPath>() {
            return Some(path.as_str());
        }
        None
    }
}

impl KeyExtractor for Route {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        Some(Self::template(parts).unwrap_or(Self::UNMATCHED).into())
    }

    fn uses_route(&self) -> bool {
        true
    }

    fn is_spoofable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn request_without_a_route_has_the_key_of_the_unmatched() {
        let (parts, ()) = Request::new(()).into_parts();
        assert_eq!(Route.extract(&parts), Some(Key::from("<unmatched>")));
        assert_eq!(Route::template(&parts), None);
    }
}
