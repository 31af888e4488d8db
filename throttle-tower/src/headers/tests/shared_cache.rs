use super::*;
use crate::headers::is_public;

#[test]
fn public_response_is_recognised_by_its_directives() {
    for line in [
        "public",
        "max-age=1,PUBLIC",
        "  Public ,x",
        "s-maxage=0",
        "S-MAXAGE = 5",
        "no-cache=\"a, \\\" b\", public",
        "x=\"never closed, public",
        ",,public",
    ] {
        assert!(is_public(&with([("cache-control", line)])), "{line}");
    }
    assert!(is_public(&with([
        ("cache-control", "max-age=1"),
        ("cache-control", "public")
    ])));
}

#[test]
fn other_directives_do_not_make_a_response_public() {
    for line in [
        "",
        "private",
        "publicly",
        "x-public",
        "x=public",
        "no-cache=\"a, public\"",
        "x=\"\\\", public, \"",
        // Outside of quotes a backslash escapes nothing.
        "x=\\\", public, \"",
        "max-age=5",
    ] {
        assert!(!is_public(&with([("cache-control", line)])), "{line}");
    }
    assert!(!is_public(&HeaderMap::new()));
}
