//! The forms of texts, as regular expressions that every validator reads: no look-around, no
//! classes of Unicode.

use throttle_core::PolicyName;

use crate::registry::HEADER;

/// A name under which a file has texts, what they are, and their form.
type Pattern = (&'static str, &'static str, fn() -> String);

pub(crate) const TEXTS: [Pattern; 16] = [
    (
        "name",
        "1 to 64 printable ASCII characters, because clients read it in headers.",
        printable,
    ),
    (
        "rate",
        "A count and a period, as in \"10/second\", \"100/15m\" or \"1000 per hour\".",
        rate,
    ),
    (
        "duration",
        "A number and a unit, as in \"500ms\", \"15m\" or \"1 day\".",
        duration,
    ),
    (
        "shift",
        "A duration, with a minus sign for earlier, as in \"6h\" or \"-30m\".",
        shift,
    ),
    (
        "utc-offset",
        "Local time's offset from UTC, as in \"+01:00\".",
        utc_offset,
    ),
    (
        "header-name",
        "The name of a header, as in \"x-api-key\".",
        || TOKEN.to_owned(),
    ),
    (
        "address-header-name",
        "The name of a header, as in \"cf-connecting-ip\".",
        || ADDRESS_HEADER.to_owned(),
    ),
    (
        "header-key",
        "A header's value, as in \"header:x-tenant\". The client chooses it.",
        header_key,
    ),
    (
        "share",
        "A share of the limit, as in \"local/4\" for 4 processes.",
        || SHARE.to_owned(),
    ),
    ("method", "A method.", || METHOD.to_owned()),
    ("route", "A route.", route),
    ("path", "A pattern, as in \"/api/**\".", path),
    ("host", "A host, as in \"api.example.com\".", host),
    ("network", "An address or a network.", network),
    (
        "file",
        "The path of a file, from the folder of this one, as in \"next.toml\".",
        || ".+".to_owned(),
    ),
    (
        "nat64",
        "The prefix of a NAT64, as in \"2001:db8:64::/96\".",
        nat64,
    ),
];

/// A whole number from 1. Whether it is below 2^53 is left to the reader.
const NUMBER: &str = "0*[1-9][0-9]{0,15}";

const UNIT: &str =
    "us|µs|microseconds?|ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hr|hours?|d|days?";

/// The name of a header or of a method.
pub(crate) const TOKEN: &str = "[!#$%&'*+.^_`|~0-9A-Za-z-]+";

/// A method is in upper case.
pub(crate) const METHOD: &str = "[!#$%&'*+.^_`|~0-9A-Z-]+";

/// How many processes share a limit.
pub(crate) const SHARE: &str = r"local/\+?0*[1-9][0-9]{0,9}";

pub(crate) fn printable() -> String {
    format!("[ -~]{{1,{}}}", PolicyName::MAX_LEN)
}

pub(crate) fn rate() -> String {
    format!(r"\s*{NUMBER}\s*(?:/| per )\s*(?:{NUMBER}\s*)?(?:{UNIT})\s*")
}

pub(crate) fn duration() -> String {
    format!(r"\s*{NUMBER}\s*(?:{UNIT})\s*")
}

pub(crate) fn shift() -> String {
    format!("-?(?:{})", duration())
}

/// Up to 14 hours.
pub(crate) fn utc_offset() -> String {
    "[+-](?:(?:0[0-9]|1[0-3]):[0-5][0-9]|14:00)".to_owned()
}

/// A key that is the value of a header.
pub(crate) fn header_key() -> String {
    format!("{HEADER}{TOKEN}")
}

/// The header of a client's address: proxies drop headers with an underscore.
pub(crate) const ADDRESS_HEADER: &str = "[!#$%&'*+.^`|~0-9A-Za-z-]+";

/// A template of axum's: parameters are in braces and end their segment, a wildcard ends the route.
/// Doubled braces stand for themselves.
pub(crate) fn route() -> String {
    let letter = r"[^{}/?#]|\{\{|\}\}";
    let text = format!(r"(?:(?:[^{{}}/?#:*]|\{{\{{|\}}\}})(?:{letter})*)?");
    let name = "[^{}/*?#]+";
    format!(r"(?:/{text}(?:\{{{name}\}})?)*/{text}(?:\{{\*?{name}\}})?")
}

/// Segments, `*` for one and a final `**` for any number.
pub(crate) fn path() -> String {
    let rest = "[^*?#%/]";
    let segment = format!(r"\*|[^*?#%/{{:.]{rest}*|\.(?:[^*?#%/.]{rest}*|\.{rest}+)");
    format!(r"/(?:(?:{segment})/)*(?:{segment}|\*\*)?")
}

/// A name, all names below one, or an IPv6 address in brackets.
pub(crate) fn host() -> String {
    let label = "[A-Za-z0-9_-]+";
    format!(r"(?:\*\.)?{label}(?:\.{label})*\.?|\[[0-9A-Fa-f:.]+\]")
}

/// An address or a network. Of IPv6, what looks like one.
pub(crate) fn network() -> String {
    let byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    let (v4, v6) = (
        "(?:3[0-2]|[12]?[0-9])",
        "(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])",
    );
    let (four, group) = (format!(r"{byte}(?:\.{byte}){{3}}"), "[0-9A-Fa-f]{0,4}");
    let long = format!("{group}(?:(?::{group}){{2,8}}|(?::{group}){{1,6}}:{four})");
    format!("{four}(?:/{v4})?|{long}(?:/{v6})?")
}

/// A prefix of a NAT64, which has one of a few lengths. What stands before the slash is left to the
/// reader.
pub(crate) fn nat64() -> String {
    "[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*/(?:32|40|48|56|64|96)".to_owned()
}

/// A network that is (nearly) everyone.
pub(crate) fn everyone() -> String {
    "[^:]*/[0-7]|.*:.*/[0-6]".to_owned()
}
