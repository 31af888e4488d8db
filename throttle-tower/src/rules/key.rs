//! Whose budget a request spends: `by`.

use std::sync::Arc;

use http::request::Parts;
use throttle_core::{ConfigError, Key};
use toml::de::DeValue;

use super::reader::{Field, Section};
use super::registry::{HEADER, KEYS, KeySource, Registry, unknown};
use super::values::{self, Word};
use crate::client_ip::{ClientIp, IpPrefix};
use crate::extract::{Constant, Header, KeyExtractor, Method, Route};

/// Reads a key; a problem if it is none.
pub(super) fn read(field: &Field<'_>, client_ip: &ClientIp, registry: &Registry) -> Option<KeySource> {
    match field.text().and_then(|name| registry.keys.get(name)) {
        Some(key) => Some(key.clone()),
        None => Reader { client_ip, registry }.extractor(field).map(KeySource::Extractor),
    }
}

/// The kinds of keys that are tables.
pub(super) const KINDS: [&str; 3] = ["client-ip", "header", "first-of"];

/// The bits of the addresses.
pub(super) const IPV4_BITS: u8 = 32;
pub(super) const IPV6_BITS: u8 = 128;

const FORMS: &str = "write a name, as in \"client-ip\", a list of names for one key of several parts, or a table with \
                     client-ip, header or first-of";

struct Reader<'r> {
    client_ip: &'r ClientIp,
    registry: &'r Registry,
}

impl Reader<'_> {
    fn extractor(&self, field: &Field<'_>) -> Option<Arc<dyn KeyExtractor>> {
        if let Some(name) = field.text() {
            return self.named(field, name);
        }
        if field.is_list() {
            let several = self.several(field)?;
            refuse_constant(field);
            return Some(Arc::new(Joined(several)));
        }
        let table = field.section(FORMS)?;
        let (kind, value) = table.one_of(&KINDS, "kind of key", FORMS)?;
        let key: Option<Arc<dyn KeyExtractor>> = match kind {
            "client-ip" => self.network(&value),
            "first-of" => self.several(&value).map(|several| {
                refuse_unreachable(&value);
                Arc::new(FirstOf(several)) as _
            }),
            _ => header(&value, table.field("normalize").as_ref()),
        };
        table.finish();
        key
    }

    fn named(&self, field: &Field<'_>, name: &str) -> Option<Arc<dyn KeyExtractor>> {
        Some(match name {
            "client-ip" => Arc::new(self.client_ip.clone()),
            "constant" => Arc::new(Constant),
            "method" => Arc::new(Method),
            "route" => Arc::new(Route),
            _ => match (name.strip_prefix(HEADER), self.registry.keys.get(name)) {
                (Some(header), _) => return checked(Header::new(header), field),
                (None, Some(KeySource::Extractor(key))) => Arc::clone(key),
                (None, Some(KeySource::Future(_))) => {
                    field.problem("a future returns this key, so it cannot be a part of another; use it alone");
                    return None;
                }
                (None, None) => {
                    let known: Vec<&str> =
                        KEYS.into_iter().chain(self.registry.keys.keys().map(String::as_str)).collect();
                    field.problem(unknown("key", name, &known, "key"));
                    return None;
                }
            },
        })
    }

    fn several(&self, field: &Field<'_>) -> Option<Vec<Arc<dyn KeyExtractor>>> {
        let rule = "write the parts of the key, as in [\"client-ip\", \"route\"]";
        let parts: Vec<_> = field.distinct_list(rule)?.iter().map(|part| self.extractor(part)).collect();
        parts.into_iter().collect()
    }

    /// `{ client-ip = { ipv4 = 24, ipv6 = 48 } }`
    fn network(&self, field: &Field<'_>) -> Option<Arc<dyn KeyExtractor>> {
        let table = field.section("write how many bits make a network, as in { ipv4 = 24, ipv6 = 48 }")?;
        let usual = IpPrefix::default();
        let bits = |name, most: u8, usual: u8| match table.field(name) {
            None => Some(usual),
            Some(field) => field.number(1, u64::from(most)).and_then(|bits| u8::try_from(bits).ok()),
        };
        let (v4, v6) = (bits("ipv4", IPV4_BITS, usual.v4()), bits("ipv6", IPV6_BITS, usual.v6()));
        table.finish();
        let prefix = IpPrefix::new(v4?, v6?).map_err(|error| field.problem_as(error)).ok()?;
        Some(Arc::new(self.client_ip.clone().by_prefix(prefix)))
    }
}

/// Whether every request has this key, so that a rule for those without one has no effect.
pub(super) fn is_never_missing(key: &DeValue<'_>) -> bool {
    match key {
        DeValue::String(name) => NEVER_MISSING.contains(&&**name),
        DeValue::Array(parts) => parts.iter().all(|part| is_never_missing(part.get_ref())),
        DeValue::Table(table) => {
            let keys = table.get("first-of").or_else(|| table.get("first_of"));
            let keys = keys.and_then(|keys| keys.get_ref().as_array());
            keys.is_some_and(|keys| keys.iter().any(|key| is_never_missing(key.get_ref())))
        }
        _ => false,
    }
}

const NEVER_MISSING: [&str; 3] = ["constant", "method", "route"];

/// A key after one that is never missing is never used.
fn refuse_unreachable(keys: &Field<'_>) {
    let keys = keys.list("").unwrap_or_default();
    let ends = keys.iter().position(|key| is_never_missing(key.raw()));
    if let Some(ends) = ends
        && let Some(next) = keys.get(ends + 1)
    {
        next.problem(format_args!("it is never used, because {} before it is never missing", keys[ends].shown()));
    }
}

/// One budget of all requests does not divide another key.
fn refuse_constant(parts: &Field<'_>) {
    let parts = parts.list("").unwrap_or_default();
    if parts.len() > 1
        && let Some(constant) = parts.iter().find(|part| part.text() == Some("constant"))
    {
        constant.problem("it adds nothing to the other parts of the key; remove it");
    }
}

/// `{ header = "x-user", normalize = "identity" }`
fn header(name: &Field<'_>, normalize: Option<&Field<'_>>) -> Option<Arc<dyn KeyExtractor>> {
    let header = Header::new(name.expect_text("it must be the name of a header, as in \"x-api-key\"")?);
    let header = match normalize {
        None => header,
        Some(how) => normalized(header, how)?,
    };
    checked(header, name)
}

fn checked(header: Header, field: &Field<'_>) -> Option<Arc<dyn KeyExtractor>> {
    match header.check() {
        Ok(()) => Some(Arc::new(header)),
        Err(error) => {
            field.config_problem(&error);
            None
        }
    }
}

/// How the values of a header are made equal.
#[derive(Clone, Copy)]
pub(super) enum Normalization {
    Lowercase,
    Identity,
}

pub(super) const NORMALIZATIONS: [Word<Normalization>; 2] =
    [("identity", Normalization::Identity), ("lowercase", Normalization::Lowercase)];

fn normalized(header: Header, how: &Field<'_>) -> Option<Header> {
    match values::word(how.text(), &NORMALIZATIONS) {
        Some(Normalization::Lowercase) => Some(header.normalize(str::to_ascii_lowercase)),
        #[cfg(feature = "unicode")]
        Some(Normalization::Identity) => Some(header.normalize_identity()),
        #[cfg(not(feature = "unicode"))]
        Some(Normalization::Identity) => {
            how.problem("this program was built without the feature unicode of throttle-tower; enable it");
            None
        }
        None => {
            how.problem("it must be \"identity\" (as user names and addresses are compared) or \"lowercase\" (ASCII)");
            None
        }
    }
}

/// All keys together, as a tuple of extractors makes them; missing where one of them is.
struct Joined(Vec<Arc<dyn KeyExtractor>>);

/// The first key that is not missing.
struct FirstOf(Vec<Arc<dyn KeyExtractor>>);

macro_rules! several {
    ($several:ident, $joined_by:literal, $extract:expr) => {
        impl KeyExtractor for $several {
            fn extract(&self, parts: &Parts) -> Option<Key> {
                $extract(&self.0, parts)
            }

            fn check(&self) -> Result<(), ConfigError> {
                self.0.iter().try_for_each(|part| part.check())
            }

            fn uses_route(&self) -> bool {
                self.0.iter().any(|part| part.uses_route())
            }

            fn uses_peer(&self) -> bool {
                self.0.iter().any(|part| part.uses_peer())
            }

            fn client_ip(&self) -> Option<&ClientIp> {
                self.0.iter().find_map(|part| part.client_ip())
            }

            fn describe(&self) -> String {
                let parts: Vec<String> = self.0.iter().map(|part| part.describe()).collect();
                format!("({})", parts.join($joined_by))
            }
        }
    };
}

several!(Joined, ", ", |keys: &[Arc<dyn KeyExtractor>], parts| {
    let mut joined = Key::builder();
    for key in keys {
        joined = joined.key(&key.extract(parts)?);
    }
    Some(joined.finish())
});
several!(FirstOf, " or ", |keys: &[Arc<dyn KeyExtractor>], parts| keys.iter().find_map(|key| key.extract(parts)));

/// The section's `by`, by which each limit must say whose budget it is.
pub(super) fn required(section: &Section<'_>, client_ip: &ClientIp, registry: &Registry) -> Option<KeySource> {
    let remedy = "say whose budget it is, as in by = \"client-ip\", or \"constant\" for one budget of all requests";
    read(&section.required("by", remedy)?, client_ip, registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_list_is_that_of_a_tuple() {
        let request = http::Request::builder().header("a", "1").header("b", "2");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let header = |name: &str| Arc::new(Header::new(name)) as Arc<dyn KeyExtractor>;
        let joined = |names: &[&str]| Joined(names.iter().map(|name| header(name)).collect()).extract(&parts);
        assert_eq!(joined(&["a", "b"]), (Header::new("a"), Header::new("b")).extract(&parts));
        assert_ne!(joined(&["a", "b"]), joined(&["b", "a"]));
        assert_eq!(joined(&["a", "missing"]), None);
        let first = |names: &[&str]| FirstOf(names.iter().map(|name| header(name)).collect()).extract(&parts);
        assert_eq!(first(&["missing", "b"]), Header::new("b").extract(&parts));
        assert_eq!(first(&["missing"]), None);
    }

    #[test]
    fn key_of_several_uses_what_its_parts_use() {
        let several = || vec![Arc::new(Route) as Arc<dyn KeyExtractor>, Arc::new(ClientIp::peer())];
        let (joined, first) = (Joined(several()), FirstOf(several()));
        assert!(joined.uses_route() && joined.uses_peer() && first.uses_route() && first.uses_peer());
        assert!([joined.client_ip(), first.client_ip()].iter().all(|source| *source == Some(&ClientIp::peer())));
        assert!(joined.describe().ends_with("Route, ClientIp)") && first.describe().ends_with("Route or ClientIp)"));
        let wrong = vec![Arc::new(Header::new("no name")) as Arc<dyn KeyExtractor>];
        assert!(Joined(wrong.clone()).check().is_err() && FirstOf(wrong).check().is_err());
    }

    #[test]
    fn key_of_several_uses_nothing_that_none_of_its_parts_uses() {
        let with = |part: &Arc<dyn KeyExtractor>| vec![Arc::new(Constant) as Arc<dyn KeyExtractor>, Arc::clone(part)];
        let parts: [(Arc<dyn KeyExtractor>, _); 3] = [
            (Arc::new(Method), (false, false)),
            (Arc::new(Route), (true, false)),
            (Arc::new(ClientIp::peer()), (false, true)),
        ];
        for (part, expected) in parts {
            let (joined, first) = (Joined(with(&part)), FirstOf(with(&part)));
            assert_eq!((joined.uses_route(), joined.uses_peer()), expected, "{}", joined.describe());
            assert_eq!((first.uses_route(), first.uses_peer()), expected, "{}", first.describe());
            assert!(joined.check().is_ok() && first.check().is_ok());
        }
    }

    #[test]
    fn key_of_several_is_described_by_its_parts() {
        let several = || vec![Arc::new(Header::new("a")) as Arc<dyn KeyExtractor>, Arc::new(Header::new("b"))];
        assert_eq!(Joined(several()).describe(), "(Header(\"a\"), Header(\"b\"))");
        assert_eq!(FirstOf(several()).describe(), "(Header(\"a\") or Header(\"b\"))");
    }

    #[test]
    fn first_key_that_is_there_is_taken() {
        let request = http::Request::builder().header("a", "1").header("b", "2");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let first = FirstOf(vec![Arc::new(Header::new("b")), Arc::new(Header::new("a"))]);
        assert_eq!(first.extract(&parts), Header::new("b").extract(&parts));
    }
}
