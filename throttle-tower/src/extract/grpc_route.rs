use http::request::Parts;
use throttle_core::{ConfigError, Key};

use super::key_extractor::KeyExtractor;
use super::route::Route;

impl Route {
    /// Keys by the method of a gRPC request, `/package.Service/Method`, if it is one of `methods`.
    /// All others share the budget `<unmatched>`: a client can call as many methods that do not
    /// exist as it likes, and no router tells a layer which ones do. tonic answers those
    /// `UNIMPLEMENTED`, after the layer has decided. Building the layer fails if a method is not
    /// written so. (`Route` itself is the service in layers inside the axum router of tonic's
    /// `Routes`, as `/package.Service/{*rest}`, and `<unmatched>` in layers around tonic's server.)
    ///
    /// ```
    /// use throttle_tower::{Gcra, KeyExtractor, Rate, Route, ThrottleLayer, limit};
    ///
    /// let by_method = Route::grpc(["/shop.Orders/Place", "/shop.Orders/List"]);
    /// let key = |path: &str| {
    ///     by_method.extract(&http::Request::post(path).body(()).unwrap().into_parts().0)
    /// };
    /// assert_eq!(key("/shop.Orders/Place"), Some("/shop.Orders/Place".into()));
    /// assert_eq!(key("/shop.Orders/Unknown"), Some(Route::UNMATCHED.into()));
    ///
    /// let per_method = limit("per-method", Gcra::new(Rate::per_second(100)));
    /// assert!(ThrottleLayer::new(per_method.clone().by(by_method)).is_ok());
    /// assert!(ThrottleLayer::new(per_method.by(Route::grpc(["Place"]))).is_err());
    /// ```
    #[must_use]
    pub fn grpc(methods: impl IntoIterator<Item = impl Into<String>>) -> GrpcRoute {
        let mut methods: Vec<String> = methods.into_iter().map(Into::into).collect();
        methods.sort_unstable();
        GrpcRoute {
            methods: methods.into(),
        }
    }
}

/// The method of a gRPC request, if it is one of those that exist; see [`Route::grpc`].
///
/// ```
/// use throttle_tower::extract::GrpcRoute;
/// use throttle_tower::{KeyExtractor, Route};
///
/// let by_method: GrpcRoute = Route::grpc(["/shop.Orders/Place"]);
/// assert!(by_method.check().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct GrpcRoute {
    /// Sorted.
    methods: std::sync::Arc<[String]>,
}

impl KeyExtractor for GrpcRoute {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let path = parts.uri.path();
        let is_known = self
            .methods
            .binary_search_by(|method| method.as_str().cmp(path))
            .is_ok();
        Some(if is_known { path } else { Route::UNMATCHED }.into())
    }

    fn check(&self) -> Result<(), ConfigError> {
        match self.methods.iter().find(|method| !is_method(method)) {
            Some(wrong) => {
                let rule = "a gRPC method must be written as in its requests' path: \
                    /package.Service/Method";
                Err(ConfigError::new(
                    "gRPC method",
                    format_args!("{wrong:?}"),
                    rule,
                ))
            }
            None => Ok(()),
        }
    }

    fn describe(&self) -> String {
        "Route::grpc".to_owned()
    }

    fn is_spoofable(&self) -> bool {
        true
    }
}

/// Whether a path is `/service/method`.
fn is_method(path: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'))
    };
    let names = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    names.is_some_and(|(service, method)| is_name(service) && is_name(method))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(by: &GrpcRoute, path: &str) -> Key {
        by.extract(&http::Request::post(path).body(()).unwrap().into_parts().0)
            .unwrap()
    }

    #[test]
    fn only_methods_that_exist_have_budgets_of_their_own() {
        let by = Route::grpc(["/b.S/Two", "/a.S/One", "/S/three_3"]);
        assert!(by.check().is_ok());
        for known in ["/a.S/One", "/b.S/Two", "/S/three_3", "/a.S/One?query"] {
            assert_eq!(
                key(&by, known),
                Key::from(known.trim_end_matches("?query")),
                "{known}"
            );
        }
        for unknown in [
            "/",
            "/a.S/",
            "/a.S/one",
            "/a.S/One/",
            "//a.S/One",
            "/a.S/Two",
            "/c.S/One",
            "/a.S/%4fne",
        ] {
            assert_eq!(key(&by, unknown), Key::from(Route::UNMATCHED), "{unknown}");
        }
        assert_eq!(
            key(&Route::grpc([""; 0]), "/a.S/One"),
            Key::from(Route::UNMATCHED)
        );
    }

    #[test]
    fn method_that_no_request_can_have_is_a_mistake() {
        for wrong in [
            "",
            "/",
            "a.S/One",
            "/a.S",
            "/a.S/",
            "//One",
            "/a.S/One/",
            "/a.S/One two",
            "/a.S/{method}",
        ] {
            let error = Route::grpc(["/a.S/One", wrong]).check().unwrap_err();
            let said = format!(
                "gRPC method is {wrong:?}: a gRPC method must be written as in its requests' path: "
            );
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }

    #[test]
    fn describe_returns_the_call_that_programs_write() {
        assert_eq!(Route::grpc(["/a.S/One"]).describe(), "Route::grpc");
    }
}
