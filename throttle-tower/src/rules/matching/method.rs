use http::Method;

use crate::rules::names::nearest;

/// The methods of RFC 9110 and RFC 5789, one of which is meant by a name that is nearly the same.
const USUAL: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"];

/// Whether a limit on these methods applies. What serves GET serves HEAD, so HEAD must not be a way around a limit on
/// GET.
pub(super) fn any_matches(methods: &[Method], method: &Method) -> bool {
    methods.contains(method) || (method == Method::HEAD && methods.contains(&Method::GET))
}

/// # Errors
///
/// What to write instead.
pub(super) fn parse(text: &str) -> Result<Method, String> {
    if text.chars().any(|c| c.is_ascii_lowercase()) {
        return Err(format!("methods are written in upper case; write {:?}", text.to_ascii_uppercase()));
    }
    let method = Method::from_bytes(text.as_bytes()).map_err(|_| "it is not a method, as in \"POST\"".to_owned())?;
    match nearest(text, USUAL) {
        Some(near) if near != text && near.len().abs_diff(text.len()) <= 1 && text.len() > 3 => {
            Err(format!("no method has this name; did you mean {near:?}?"))
        }
        _ => Ok(method),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_no_way_around_a_limit_on_get() {
        assert!(any_matches(&[Method::GET], &Method::HEAD) && any_matches(&[Method::HEAD], &Method::HEAD));
        assert!(!any_matches(&[Method::HEAD], &Method::GET) && !any_matches(&[Method::POST], &Method::HEAD));
    }

    #[test]
    fn method_is_written_as_it_is_sent() {
        assert_eq!(parse("POST"), Ok(Method::POST));
        assert!(parse("PURGE").is_ok() && parse("PROPFIND").is_ok() && parse("LOCK").is_ok() && parse("ACL").is_ok());
        assert!(parse("post").unwrap_err().ends_with("write \"POST\""));
        assert!(parse("PSOT").unwrap_err().ends_with("did you mean \"POST\"?"));
        assert!(parse("").is_err() && parse("GET /").is_err());
    }
}
