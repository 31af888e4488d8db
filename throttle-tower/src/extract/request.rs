use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;
use throttle_core::Key;

use super::KeyExtractor;

/// The template of the route that serves the request, `/users/{id}`, never the path itself: paths have aliases, and
/// every new one would be a new budget.
///
/// axum provides it to layers inside its router (feature `axum`); elsewhere, a router of yours can put a
/// [`MatchedRoute`] into the request. Requests that matched no route share the budget `<unmatched>`; if that happens to
/// requests that are served, a [warning](crate::ThrottleLayer::on_warning) says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route;

/// The template of the matched route, as an extension of the request, where the router is not axum's.
#[derive(Clone, Debug)]
pub struct MatchedRoute(pub Arc<str>);

impl Route {
    /// What requests are keyed by that matched no route.
    pub const UNMATCHED: &str = "<unmatched>";

    pub(crate) fn template(parts: &Parts) -> Option<&str> {
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
}

/// The method. HEAD counts as GET, since GET handlers serve it; methods that no RFC 9110 or 5789 knows count as one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Method;

impl KeyExtractor for Method {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        Some(
            match parts.method.as_str() {
                "HEAD" => "GET",
                known @ ("GET" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" | "CONNECT" | "TRACE") => known,
                _ => "<other>",
            }
            .into(),
        )
    }
}

/// Something that an earlier layer left in the request: who is logged in, say.
pub struct Extension<T> {
    key: Arc<dyn Fn(&T) -> Key + Send + Sync>,
    of: PhantomData<fn(&T)>,
}

impl<T: Send + Sync + 'static> Extension<T> {
    /// The extension of type `T`, by what `key` makes of it: a value of its own, not one borrowed from the extension.
    ///
    /// ```
    /// use throttle_tower::extract::Extension;
    ///
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let per_user = Extension::by(|user: &User| user.id);
    /// ```
    #[must_use]
    pub fn by<K: Into<Key>>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        Self { key: Arc::new(move |value| key(value).into()), of: PhantomData }
    }
}

impl<T: Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        parts.extensions.get::<T>().map(|value| (self.key)(value))
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self { key: Arc::clone(&self.key), of: PhantomData }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension<{}>", std::any::type_name::<T>())
    }
}
