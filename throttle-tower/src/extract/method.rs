use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;

/// The method. HEAD counts as GET, since GET handlers serve it; methods outside RFC 9110 and RFC
/// 5789 count as one.
///
/// ```
/// use throttle_tower::KeyExtractor;
/// use throttle_tower::extract::Method;
///
/// let key = |method: &str| {
///     Method.extract(
///         &http::Request::builder()
///             .method(method)
///             .body(())
///             .unwrap()
///             .into_parts()
///             .0,
///     )
/// };
/// assert_eq!(key("HEAD"), key("GET"));
/// assert_eq!(key("BREW"), key("STEEP"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Method;

impl KeyExtractor for Method {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        Some(
            match parts.method.as_str() {
                "HEAD" => "GET",
                known @ ("GET" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" | "CONNECT"
                | "TRACE") => known,
                _ => "<other>",
            }
            .into(),
        )
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
    fn each_registered_method_has_a_key_of_its_own() {
        let key = |name: &str| {
            Method
                .extract(
                    &Request::builder()
                        .method(name)
                        .body(())
                        .unwrap()
                        .into_parts()
                        .0,
                )
                .unwrap()
        };
        for name in [
            "GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE",
        ] {
            assert_eq!(key(name), Key::from(name));
        }
        assert_eq!(key("HEAD"), Key::from("GET"));
        for other in ["get", "BREW", "GETS"] {
            assert_eq!(key(other), Key::from("<other>"), "{other}");
        }
    }
}
