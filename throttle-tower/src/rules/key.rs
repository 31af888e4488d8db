//! Whose budget a request spends: `by`.

use std::sync::Arc;

use http::request::Parts;
use throttle_core::Key;
use toml::de::DeValue;

use super::context::Context;
use super::outline::{Form, by_default};
use super::reader::{Field, Row, Section, Word};
use super::registry::{HEADER, KEYS, KeySource, registered};
use crate::client_ip::{ClientIp, IpPrefix};
use crate::extract::{Header, KeyExtractor};

pub(super) const BY: &str = "Whose budget a request spends: a key, several as one, or a table \
    with client-ip, header \
                             or first-of. \"constant\" is one budget of all requests.";

/// The section's `by`, by which a limit must say whose budget it is.
pub(super) fn required<'a>(section: &Section<'a>) -> Option<Field<'a>> {
    let remedy = "say whose budget it is, as in by = \"client-ip\", or \"constant\" for one \
        budget of all requests";
    section.required("by", BY, remedy)
}

/// Reads a key; a problem if it is none.
pub(super) fn read(field: &Field<'_>, context: &Context<'_>) -> Option<KeySource> {
    field.note(Form::Named("registered-key-of-a-future"));
    match registered_key(field, context) {
        Some(key) => Some(key.clone()),
        None => extractor(field, context).map(KeySource::Extractor),
    }
}

/// As [`read`], for a key that no future returns.
pub(super) fn read_at_once(
    field: &Field<'_>,
    context: &Context<'_>,
    rule: &str,
) -> Option<Extractor> {
    if let Some(KeySource::Future(_)) = registered_key(field, context) {
        field.problem(format_args!("a future returns this key, and {rule}"));
        return None;
    }
    extractor(field, context)
}

fn registered_key<'r>(field: &Field<'_>, context: &Context<'r>) -> Option<&'r KeySource> {
    context.registry.keys.get(field.text()?)
}

pub(super) type Extractor = Arc<dyn KeyExtractor>;

/// The kinds of keys that are tables.
#[derive(Clone, Copy)]
enum Kind {
    ClientIp,
    Header,
    FirstOf,
}

const KINDS: [Row<Kind>; 3] = [
    (
        "client-ip",
        "The network of the client's address.",
        Kind::ClientIp,
    ),
    (
        "header",
        "The value of a header. The client chooses it.",
        Kind::Header,
    ),
    (
        "first-of",
        "The first of these keys that is not missing.",
        Kind::FirstOf,
    ),
];

const FORMS: &str = "write a name, as in \"client-ip\", a list of names for one key of several \
    parts, or a table with \
                     client-ip, header or first-of";

fn extractor(field: &Field<'_>, context: &Context<'_>) -> Option<Extractor> {
    field.defined("key", "", |field| {
        if let Some(name) = field.text() {
            return named(field, name, context);
        }
        if field.is_list() {
            let several = several(field, context)?;
            refuse_constant(field);
            return Some(Arc::new(Joined(several)));
        }
        let table = field.section(("key-table", "A key with settings."), FORMS)?;
        let key = table.one_of(
            &KINDS,
            ("kind of key", FORMS),
            |(.., kind), value| match kind {
                Kind::ClientIp => network(value, &context.client_ip),
                Kind::Header => header(
                    value,
                    table
                        .field("normalize", "How values are made equal.")
                        .as_ref(),
                ),
                Kind::FirstOf => several(value, context).and_then(|several| {
                    refuse_unreachable(value);
                    several
                        .into_iter()
                        .reduce(|first, next| Arc::new(first.or(next)))
                }),
            },
        );
        if key.is_none() {
            // It is not wrong because the kind is.
            table.field_if_written("normalize");
        }
        table.finish();
        key
    })
}

fn named(field: &Field<'_>, name: &str, context: &Context<'_>) -> Option<Extractor> {
    field.note(Form::Named("header-key"));
    if let Some(key) = field.word(&KEYS) {
        return Some(key(&context.client_ip));
    }
    if let Some(header) = name.strip_prefix(HEADER) {
        return checked(Header::new(header), field);
    }
    match registered(
        field,
        name,
        ("registered-key", &context.registry.keys),
        &KEYS.map(|(name, _)| name),
    )? {
        KeySource::Extractor(key) => Some(key),
        KeySource::Future(_) => {
            field.problem(
                "a future returns this key, so it cannot be a part of another; use it alone",
            );
            None
        }
    }
}

fn several(field: &Field<'_>, context: &Context<'_>) -> Option<Vec<Extractor>> {
    let rule = "write the parts of the key, as in [\"client-ip\", \"route\"]";
    let parts: Vec<_> = field
        .distinct_list(rule)?
        .iter()
        .map(|part| extractor(part, context))
        .collect();
    parts.into_iter().collect()
}

/// `{ client-ip = { ipv4 = 24, ipv6 = 48 } }`
fn network(field: &Field<'_>, client_ip: &ClientIp) -> Option<Extractor> {
    let definition = ("networks", "How many bits of an address make a network.");
    let table = field.section(
        definition,
        "write how many bits make a network, as in { ipv4 = 24, ipv6 = 48 }",
    )?;
    let usual = IpPrefix::default();
    let bits = |name, most, usual| {
        let about = by_default(usual, "How many bits of the address tell clients apart.");
        match table.field(name, about) {
            None => Some(usual),
            Some(field) => field
                .number(1, most)
                .and_then(|bits| u8::try_from(bits).ok()),
        }
    };
    let (v4, v6) = (bits("ipv4", 32, usual.v4()), bits("ipv6", 128, usual.v6()));
    table.finish();
    let prefix = IpPrefix::new(v4?, v6?)
        .map_err(|error| field.problem_as(error))
        .ok()?;
    Some(Arc::new(client_ip.clone().by_prefix(prefix)))
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
    let keys = keys.elements();
    let ends = keys.iter().position(|key| is_never_missing(key.raw()));
    if let Some(ends) = ends
        && let Some(next) = keys.get(ends + 1)
    {
        next.problem(format_args!(
            "it is never used, because {} before it is never missing",
            keys[ends].shown()
        ));
    }
}

/// One budget of all requests does not divide another key.
fn refuse_constant(parts: &Field<'_>) {
    let parts = parts.elements();
    if parts.len() > 1
        && let Some(constant) = parts.iter().find(|part| part.text() == Some("constant"))
    {
        constant.problem("it adds nothing to the other parts of the key; remove it");
    }
}

/// `{ header = "x-user", normalize = "identity" }`
fn header(name: &Field<'_>, normalize: Option<&Field<'_>>) -> Option<Extractor> {
    let header = name.expect_text(
        "header-name",
        "it must be the name of a header, as in \"x-api-key\"",
    );
    let set: Normalized = match normalize {
        None => |header, _| Some(header),
        Some(how) => how.expect_word(
            &NORMALIZATIONS,
            "it must be \"identity\" (as user names and addresses are compared) or \"lowercase\" \
                (ASCII)",
        )?,
    };
    checked(set(Header::new(header?), normalize.unwrap_or(name))?, name)
}

fn checked(header: Header, field: &Field<'_>) -> Option<Extractor> {
    match header.check() {
        Ok(()) => Some(Arc::new(header)),
        Err(error) => {
            field.config_problem(&error);
            None
        }
    }
}

type Normalized = fn(Header, &Field<'_>) -> Option<Header>;

/// How the values of a header are made equal.
const NORMALIZATIONS: [Word<Normalized>; 2] = [
    ("identity", by_identity),
    ("lowercase", |header, _| {
        Some(header.normalize(str::to_ascii_lowercase))
    }),
];

#[cfg(feature = "unicode")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "without the feature there is none"
)]
fn by_identity(header: Header, _: &Field<'_>) -> Option<Header> {
    Some(header.normalize_identity())
}

#[cfg(not(feature = "unicode"))]
fn by_identity(_: Header, how: &Field<'_>) -> Option<Header> {
    how.problem("this program was built without the feature unicode of tower-throttle; enable it");
    None
}

/// All keys together, as a tuple of extractors makes them; missing where one of them is.
struct Joined(Vec<Extractor>);

impl KeyExtractor for Joined {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let mut joined = Key::builder();
        for key in &self.0 {
            joined = joined.key(&key.extract(parts)?);
        }
        Some(joined.finish())
    }

    fn parts(&self) -> Vec<&dyn KeyExtractor> {
        self.0.iter().map(|part| &**part).collect()
    }

    fn describe(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(|part| part.describe()).collect();
        format!("({})", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::{Constant, Method, Route};

    #[test]
    fn key_of_a_list_is_that_of_a_tuple() {
        let request = http::Request::builder().header("a", "1").header("b", "2");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let header = |name: &str| Arc::new(Header::new(name)) as Arc<dyn KeyExtractor>;
        let joined = |names: &[&str]| {
            Joined(names.iter().map(|name| header(name)).collect()).extract(&parts)
        };
        assert_eq!(
            joined(&["a", "b"]),
            (Header::new("a"), Header::new("b")).extract(&parts)
        );
        assert_ne!(joined(&["a", "b"]), joined(&["b", "a"]));
        assert_eq!(joined(&["a", "missing"]), None);
    }

    #[test]
    fn key_of_several_uses_what_its_parts_use() {
        let joined = Joined(vec![Arc::new(Route), Arc::new(ClientIp::peer())]);
        assert!(joined.uses_route());
        assert_eq!(joined.client_ip(), Some(&ClientIp::peer()));
        assert!(joined.describe().ends_with("Route, ClientIp)"));
        assert!(
            Joined(vec![Arc::new(Header::new("no name"))])
                .check()
                .is_err()
        );
    }

    #[test]
    fn key_of_several_uses_nothing_that_none_of_its_parts_uses() {
        let parts: [(Extractor, _); 3] = [
            (Arc::new(Method), (false, false)),
            (Arc::new(Route), (true, false)),
            (Arc::new(ClientIp::peer()), (false, true)),
        ];
        for (part, expected) in parts {
            let joined = Joined(vec![Arc::new(Constant), part]);
            assert_eq!(
                (joined.uses_route(), joined.client_ip().is_some()),
                expected,
                "{}",
                joined.describe()
            );
            assert!(joined.check().is_ok());
        }
    }
}
