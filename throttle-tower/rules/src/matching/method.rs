use http::Method;

use crate::names::edits;

/// The methods of RFC 9110 and RFC 5789, one of which is meant by a name that is nearly the same.
const USUAL: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE",
];

/// Whether a limit on these methods applies. What serves GET serves HEAD, so HEAD must not be a way
/// around a limit on GET.
pub(super) fn any_matches(methods: &[Method], method: &Method) -> bool {
    methods.contains(method) || (method == Method::HEAD && methods.contains(&Method::GET))
}

/// # Errors
///
/// What to write instead.
pub(super) fn parse(text: &str) -> Result<Method, String> {
    if text.chars().any(|c| c.is_ascii_lowercase()) {
        return Err(format!(
            "methods are written in upper case; write {:?}",
            text.to_ascii_uppercase()
        ));
    }
    let method = Method::from_bytes(text.as_bytes())
        .map_err(|_| "it is not a method, as in \"POST\"".to_owned())?;
    // Methods are short: by two letters, LIST would be POST. No two usual ones differ by one.
    match USUAL.into_iter().find(|usual| edits(text, usual) == 1) {
        Some(usual) => Err(format!("no method has this name; did you mean {usual:?}?")),
        None => Ok(method),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_no_way_around_a_limit_on_get() {
        assert!(
            any_matches(&[Method::GET], &Method::HEAD)
                && any_matches(&[Method::HEAD], &Method::HEAD)
        );
        assert!(
            !any_matches(&[Method::HEAD], &Method::GET)
                && !any_matches(&[Method::POST], &Method::HEAD)
        );
    }

    #[test]
    fn method_is_written_as_it_is_sent() {
        assert_eq!(parse("POST"), Ok(Method::POST));
        for other in [
            "PURGE", "PROPFIND", "LOCK", "ACL", "LIST", "PUSH", "PULL", "COPY", "MOVE", "LINK",
            "QUERY",
        ] {
            assert!(parse(other).is_ok(), "{other}");
        }
        for usual in USUAL {
            assert_eq!(parse(usual).unwrap().as_str(), usual);
        }
        assert!(parse("post").unwrap_err().ends_with("write \"POST\""));
        assert!(parse("").is_err() && parse("GET /").is_err());
    }

    #[test]
    fn every_usual_method_is_found_by_a_name_that_is_nearly_the_same() {
        for (wrong, usual) in [
            ("GETT", "GET"),
            ("HAED", "HEAD"),
            ("PSOT", "POST"),
            ("PTU", "PUT"),
            ("DELEET", "DELETE"),
            ("PACTH", "PATCH"),
            ("OPTOINS", "OPTIONS"),
            ("CONNECTS", "CONNECT"),
            ("TRAC", "TRACE"),
        ] {
            let expected = format!("no method has this name; did you mean {usual:?}?");
            assert_eq!(parse(wrong).unwrap_err(), expected, "{wrong}");
        }
        assert_eq!(
            parse("Get").unwrap_err(),
            "methods are written in upper case; write \"GET\""
        );
        assert_eq!(
            parse("GET ").unwrap_err(),
            "it is not a method, as in \"POST\""
        );
    }

    /// Words that differ from a method in two letters, but not by a swap, are methods of the
    /// program's own.
    #[test]
    fn two_changed_letters_are_a_typo_only_if_they_are_swapped_neighbours() {
        for other in ["PXOT", "PSXT", "XTE", "GTX"] {
            assert!(parse(other).is_ok(), "{other}");
        }
    }
}
