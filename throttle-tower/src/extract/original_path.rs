use http::request::Parts;

/// Returns the path of a request as the client sent it.
///
/// A layer inside a router of axum that is nested in another one sees a URI without the prefix of
/// the nested router. This path has it (feature `axum`). A router may serve one route for several
/// spellings of a path: compare [`Route::template`](crate::Route::template) where there is one.
///
/// ```
/// use http::Request;
/// use throttle_tower::extract::original_path;
///
/// let (parts, ()) = Request::get("https://example.com/users/7?page=2").body(())?.into_parts();
/// assert_eq!(original_path(&parts), "/users/7");
/// # Ok::<(), http::Error>(())
/// ```
#[must_use]
pub fn original_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri.path();
    }
    parts.uri.path()
}
