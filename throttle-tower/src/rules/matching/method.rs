use http::Method;

use crate::rules::names::nearest;

/// The methods of RFC 9110 and RFC 5789, one of which is meant by a name that is nearly the same.
const USUAL: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"];

/// The method that a handler sees: HEAD is served by what serves GET, so it must not be a way around a limit on GET.
pub(super) fn served_as(method: &Method) -> &Method {
    if method == Method::HEAD { &Method::GET } else { method }
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
        _ => Ok(served_as(&method).clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_is_written_as_it_is_sent() {
        assert_eq!(parse("POST"), Ok(Method::POST));
        assert_eq!(parse("HEAD"), Ok(Method::GET), "what serves GET serves HEAD");
        assert!(parse("PURGE").is_ok() && parse("PROPFIND").is_ok() && parse("LOCK").is_ok() && parse("ACL").is_ok());
        assert!(parse("post").unwrap_err().ends_with("write \"POST\""));
        assert!(parse("PSOT").unwrap_err().ends_with("did you mean \"POST\"?"));
        assert!(parse("").is_err() && parse("GET /").is_err());
    }
}
