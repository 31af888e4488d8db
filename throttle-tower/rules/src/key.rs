//! Whose budget a request spends: `by`.

use std::sync::Arc;

use http::request::Parts;
use throttle_core::Key;
use toml::de::DeValue;

use super::context::Context;
use super::file_value::FileValue;
use super::form::*;
use super::registry::{HEADER, KEYS, KeySource, registered};
use throttle_tower::client_ip::{ClientIp, IpPrefix};
use throttle_tower::extract::{Header, KeyExtractor};

const BY: &str = "Whose budget a request spends: a key, several as one, or a table with client-ip, \
                  header or first-of. \"constant\" is one budget of all requests.";

const REMEDY: &str = "say whose budget it is, as in by = \"client-ip\", or \"constant\" for one \
                      budget of all requests";

pub(super) const BY_OF_A_LIMIT: FieldForm = One(
    "by",
    BY,
    Required(REMEDY),
    Any(
        &[Text("registered-key-of-a-future", FORMS), Defined(&KEY)],
        FORMS,
    ),
);

pub(super) const BY_OF_PLANS: FieldForm = One("by", BY, Required(REMEDY), Defined(&KEY));

pub(super) const BY_OF_PERMITS: FieldForm = One("by", BY, Usual("constant"), Defined(&KEY));

const FORMS: &str = "write a name, as in \"client-ip\", a list of names for one key of several \
                     parts, or a table with client-ip, header or first-of";

static KEY: Definition = Definition(
    "key",
    "",
    Optional,
    Any(
        &[
            Parsed("header-key", FORMS, |text| {
                (!text.starts_with(HEADER)).then(String::new)
            }),
            Words(|| words(&KEYS), FORMS),
            Text("registered-key", FORMS),
            Table(
                "key-table",
                "A key with settings.",
                &[
                    OneOf(
                        "kind of key",
                        FORMS,
                        &[
                            One(
                                "client-ip",
                                "The network of the client's address.",
                                Optional,
                                NETWORKS,
                            ),
                            One(
                                "header",
                                "The value of a header. The client chooses it.",
                                Optional,
                                Text(
                                    "header-name",
                                    "it must be the name of a header, as in \"x-api-key\"",
                                ),
                            ),
                            One(
                                "first-of",
                                "The first of these keys that is not missing.",
                                Optional,
                                Distinct(&Defined(&KEY), PARTS),
                            ),
                        ],
                    ),
                    One(
                        "normalize",
                        "How values are made equal.",
                        With("header"),
                        Words(
                            || words(&NORMALIZATIONS),
                            "it must be \"identity\" (as user names and addresses are compared) or \
                 \"lowercase\" (ASCII)",
                        ),
                    ),
                ],
                FORMS,
            ),
            Distinct(&Defined(&KEY), PARTS),
        ],
        FORMS,
    ),
);

const PARTS: &str = "write the parts of the key, as in [\"client-ip\", \"route\"]";

const NETWORKS: ValueForm = Table(
    "networks",
    "How many bits of an address make a network.",
    &[
        One("ipv4", BITS, Usual("32"), Number(1, 32)),
        One("ipv6", BITS, Usual("64"), Number(1, 128)),
    ],
    "write how many bits make a network, as in { ipv4 = 24, ipv6 = 48 }",
);

const BITS: &str = "How many bits of the address tell clients apart.";

/// Reads a key; a problem if it is none.
pub(super) fn read(key: &FileValue<'_>, context: &Context<'_>) -> Option<KeySource> {
    if let Some(built_in) = key.word(&KEYS) {
        return Some(KeySource::Extractor(built_in(&context.client_ip)));
    }
    let extractor = match key.value {
        DeValue::String(name) => match name.strip_prefix(HEADER) {
            Some(header) => checked(Header::new(header), key),
            None => return registered(key, "key", &context.registry.keys, &words(&KEYS)),
        },
        DeValue::Array(_) => of_several(key, context),
        _ => of_table(key, context),
    };
    extractor.map(KeySource::Extractor)
}

/// As [`read`], for a key that no future returns.
pub(super) fn read_at_once(
    key: &FileValue<'_>,
    context: &Context<'_>,
    rule: &str,
) -> Option<Extractor> {
    match read(key, context)? {
        KeySource::Extractor(key) => Some(key),
        KeySource::Future(_) => {
            key.problem(format_args!("a future returns this key, {rule}"));
            None
        }
    }
}

pub(super) type Extractor = Arc<dyn KeyExtractor>;

fn of_several(key: &FileValue<'_>, context: &Context<'_>) -> Option<Extractor> {
    let parts = parts(key, context)?;
    // One budget of all requests does not divide another key.
    let is_constant = |part: &&FileValue<'_>| part.text() == Some("constant");
    if let (Some(constant), 2..) = (key.children.iter().find(is_constant), parts.len()) {
        constant.problem("it adds nothing to the other parts of the key; remove it");
    }
    Some(Arc::new(KeyTuple(parts)))
}

fn of_table(key: &FileValue<'_>, context: &Context<'_>) -> Option<Extractor> {
    if let Some(networks) = key.get("client-ip") {
        return of_network(networks, &context.client_ip);
    }
    if let Some(name) = key.get("header") {
        return of_header(name, key.get("normalize"));
    }
    let keys = key.get("first-of")?;
    let parts = parts(keys, context)?;
    refuse_unreachable(&keys.children);
    parts
        .into_iter()
        .reduce(|first, next| Arc::new(first.or(next)))
}

fn parts(list: &FileValue<'_>, context: &Context<'_>) -> Option<Vec<Extractor>> {
    let rule = "so it cannot be a part of another; use it alone";
    let parts: Vec<_> = list
        .children
        .iter()
        .map(|part| read_at_once(part, context, rule))
        .collect();
    parts.into_iter().collect()
}

/// `{ client-ip = { ipv4 = 24, ipv6 = 48 } }`
fn of_network(networks: &FileValue<'_>, client_ip: &ClientIp) -> Option<Extractor> {
    let table = Some(networks).filter(|table| table.fits)?;
    let usual = IpPrefix::default();
    let bits = |name: &str, usual| table.at(name).number().map_or(usual, |bits| bits as u8);
    let prefix = IpPrefix::new(bits("ipv4", usual.v4()), bits("ipv6", usual.v6()))
        .map_err(|error| table.problem_as(error))
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
fn refuse_unreachable(keys: &[FileValue<'_>]) {
    let ends = keys.iter().position(|key| is_never_missing(key.value));
    if let Some(ends) = ends
        && let Some(next) = keys.get(ends + 1)
    {
        next.problem(format_args!(
            "it is never used, because {} before it is never missing",
            keys[ends].shown()
        ));
    }
}

/// `{ header = "x-user", normalize = "identity" }`
fn of_header(name: &FileValue<'_>, normalize: Option<&FileValue<'_>>) -> Option<Extractor> {
    let header = Header::new(name.text()?);
    let header = match normalize {
        None => header,
        Some(how) => how.word(&NORMALIZATIONS)?(header, how)?,
    };
    checked(header, name)
}

fn checked(header: Header, field: &FileValue<'_>) -> Option<Extractor> {
    match header.check() {
        Ok(()) => Some(Arc::new(header)),
        Err(error) => {
            field.config_problem(&error);
            None
        }
    }
}

type Normalization = fn(Header, &FileValue<'_>) -> Option<Header>;

/// How the values of a header are made equal.
const NORMALIZATIONS: [Word<Normalization>; 2] = [
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
fn by_identity(header: Header, _: &FileValue<'_>) -> Option<Header> {
    Some(header.normalize_identity())
}

#[cfg(not(feature = "unicode"))]
fn by_identity(_: Header, how: &FileValue<'_>) -> Option<Header> {
    how.problem(
        "this program was built without the feature unicode of tower-throttle-rules; enable it",
    );
    None
}

/// All keys together, as a tuple of extractors makes them; missing where one of them is.
struct KeyTuple(Vec<Extractor>);

impl KeyExtractor for KeyTuple {
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
    use throttle_tower::extract::{Constant, Method, Route};

    #[test]
    fn key_of_a_list_is_that_of_a_tuple() {
        let request = http::Request::builder().header("a", "1").header("b", "2");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let header = |name: &str| Arc::new(Header::new(name)) as Arc<dyn KeyExtractor>;
        let joined = |names: &[&str]| {
            KeyTuple(names.iter().map(|name| header(name)).collect()).extract(&parts)
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
        let joined = KeyTuple(vec![Arc::new(Route), Arc::new(ClientIp::peer())]);
        assert!(joined.uses_route());
        assert_eq!(joined.client_ip(), Some(&ClientIp::peer()));
        assert!(joined.describe().ends_with("Route, ClientIp)"));
        assert!(
            KeyTuple(vec![Arc::new(Header::new("no name"))])
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
            let joined = KeyTuple(vec![Arc::new(Constant), part]);
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
