//! Whose budget a request uses, as text for people.

use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::HeaderName;
use throttle_tower::throttle_core::canonical_ip;
use toml::Value;

use crate::entry::Entry;
use crate::names::is_named;

/// The key of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The address, or its network of so many bits (IPv4, IPv6).
    Client(u8, u8),
    Header(HeaderName),
    Route,
    Method,
    Constant,
    /// A field of the log, by its place.
    Field(usize),
    All(Vec<By>),
    FirstOf(Vec<By>),
    /// What no log has: a header or a registered name.
    Unknown(String),
}

/// What a log has.
pub struct Known<'k> {
    /// The names of `--field`.
    pub fields: &'k [String],
    pub headers: &'k [HeaderName],
}

impl By {
    /// Reads `by` of a rule file.
    pub fn read(value: &Value, known: &Known<'_>) -> Self {
        let list = |value: &Value| match value.as_array() {
            Some(parts) => parts.iter().map(|part| Self::read(part, known)).collect(),
            None => vec![Self::read(value, known)],
        };
        match value {
            Value::String(name) => Self::named(name, known),
            Value::Array(_) => Self::All(list(value)),
            Value::Table(table) => {
                let Some((kind, value)) = table.iter().find(|(kind, _)| *kind != "normalize")
                else {
                    return Self::Unknown(value.to_string());
                };
                let bits = |family, usual| {
                    let bits = value
                        .get(family)
                        .and_then(Value::as_integer)
                        .and_then(|bits| u8::try_from(bits).ok());
                    bits.unwrap_or(usual)
                };
                match (kind.replace('_', "-").as_str(), value.as_str()) {
                    ("first-of", _) => Self::FirstOf(list(value)),
                    ("client-ip", _) => Self::Client(bits("ipv4", 32), bits("ipv6", 64)),
                    ("header", Some(name)) => Self::named(&format!("header:{name}"), known),
                    _ => Self::Unknown(kind.clone()),
                }
            }
            other => Self::Unknown(other.to_string()),
        }
    }

    /// Reads a text, such as `client-ip`.
    pub fn named(name: &str, known: &Known<'_>) -> Self {
        if let Some(place) = known.fields.iter().position(|field| is_named(field, name)) {
            return Self::Field(place);
        }
        match name {
            "client-ip" => Self::Client(32, 64),
            "constant" => Self::Constant,
            "method" => Self::Method,
            "route" => Self::Route,
            name => match name
                .strip_prefix("header:")
                .and_then(|header| header.parse().ok())
            {
                Some(header) if known.headers.contains(&header) => Self::Header(header),
                _ => Self::Unknown(name.to_owned()),
            },
        }
    }

    /// What a log does not have of this key.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Unknown(name) => Some(name),
            Self::All(parts) | Self::FirstOf(parts) => parts.iter().find_map(Self::unknown),
            _ => None,
        }
    }

    /// Returns whether a request lacks such a key because the log has no address. Each client has
    /// one.
    pub fn lacks_address(&self, entry: &Entry) -> bool {
        match self {
            Self::Client(..) => entry.address.is_none(),
            Self::All(parts) => parts.iter().any(|part| part.lacks_address(entry)),
            Self::FirstOf(parts) => {
                let has_key = |part: &&Self| part.write(entry, None, &mut String::new());
                let first = parts
                    .iter()
                    .find(|part| has_key(part) || part.lacks_address(entry));
                first.is_some_and(|first| first.lacks_address(entry))
            }
            _ => false,
        }
    }

    /// Writes the key of a request behind `label`. Returns whether it has one.
    pub fn write(&self, entry: &Entry, route: Option<&str>, label: &mut String) -> bool {
        let start = label.len();
        let text = match self {
            Self::Client(v4, v6) => match entry.address {
                Some(address) => {
                    network(address, *v4, *v6, label);
                    return true;
                }
                None => None,
            },
            Self::Header(name) => entry
                .header(name)
                .map(|value| String::from_utf8_lossy(value.as_bytes())),
            Self::Route => Some(route.unwrap_or("<unmatched>").into()),
            Self::Method => Some(entry.method.as_str().into()),
            Self::Constant => Some("all".into()),
            Self::Field(place) => entry
                .fields
                .get(*place)
                .and_then(|field| field.as_deref())
                .map(Into::into),
            Self::All(parts) => {
                for (place, part) in parts.iter().enumerate() {
                    label.push_str(if place == 0 { "" } else { ", " });
                    if !part.write(entry, route, label) {
                        label.truncate(start);
                        return false;
                    }
                }
                return true;
            }
            Self::FirstOf(parts) => {
                return parts.iter().any(|part| part.write(entry, route, label));
            }
            Self::Unknown(_) => None,
        };
        label.push_str(text.as_deref().unwrap_or(""));
        text.is_some()
    }
}

/// The network of an address as the layer keys it.
fn network(address: IpAddr, v4: u8, v6: u8, label: &mut String) {
    let address = canonical_ip(address);
    // A text takes any write.
    let _ = match address {
        IpAddr::V4(address) => {
            let masked = address.to_bits()
                & u32::MAX
                    .checked_shl(32 - u32::from(v4.min(32)))
                    .unwrap_or(0);
            write!(label, "{}", std::net::Ipv4Addr::from_bits(masked))
        }
        IpAddr::V6(address) => {
            let masked = address.to_bits()
                & u128::MAX
                    .checked_shl(128 - u32::from(v6.min(128)))
                    .unwrap_or(0);
            write!(label, "{}", std::net::Ipv6Addr::from_bits(masked))
        }
    };
    let (bits, all) = if address.is_ipv4() {
        (v4, 32)
    } else {
        (v6, 128)
    };
    if bits < all {
        let _ = write!(label, "/{bits}");
    }
}

#[cfg(test)]
mod tests {
    use http::header::{REFERER, USER_AGENT};

    use super::*;

    const HEADERS: &[HeaderName] = &[USER_AGENT, REFERER];

    #[test]
    fn address_is_lacking_only_where_the_key_needs_it() {
        let line = br#"host - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1 "-" "curl""#;
        let entry = crate::combined::read(line).unwrap();
        for (by, lacks) in [
            (r#""client-ip""#, true),
            (r#""method""#, false),
            (r#"["method", "client-ip"]"#, true),
            (
                r#"{ first-of = ["header:user-agent", "client-ip"] }"#,
                false,
            ),
            (r#"{ first-of = ["client-ip", "header:user-agent"] }"#, true),
            (r#"{ first-of = ["header:referer", "client-ip"] }"#, true),
        ] {
            let file: toml::Table = format!("by = {by}").parse().unwrap();
            let known = Known {
                fields: &[],
                headers: HEADERS,
            };
            let key = By::read(&file["by"], &known);
            assert_eq!(key.lacks_address(&entry), lacks, "{by}");
        }
    }

    #[test]
    fn key_is_written_as_the_rule_file_has_it() {
        let line =
            br#"203.0.113.9 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1 "-" "curl""#;
        let v4 = crate::combined::read(line).unwrap();
        let mut v6 = v4.clone();
        (v6.address, v6.fields) = (
            Some("2001:db8:1:2:3::4".parse().unwrap()),
            vec![Some("ada".to_owned())].into(),
        );
        let key = |by: &str, entry: &Entry| {
            let file: toml::Table = format!("by = {by}").parse().unwrap();
            let mut label = String::new();
            let by = By::read(
                &file["by"],
                &Known {
                    fields: &["api-key".to_owned()],
                    headers: HEADERS,
                },
            );
            by.write(entry, Some("/{id}"), &mut label).then_some(label)
        };
        for (by, of_v4, of_v6) in [
            (
                r#""client-ip""#,
                Some("203.0.113.9"),
                Some("2001:db8:1:2::/64"),
            ),
            (
                "{ client_ip = { ipv4 = 24, ipv6 = 0 } }",
                Some("203.0.113.0/24"),
                Some("::/0"),
            ),
            (r#""header:user-agent""#, Some("curl"), Some("curl")),
            (
                r#"{ header = "User-Agent", normalize = "lowercase" }"#,
                Some("curl"),
                Some("curl"),
            ),
            (r#""header:referer""#, None, None),
            (
                r#"["method", "route", "constant"]"#,
                Some("GET, /{id}, all"),
                Some("GET, /{id}, all"),
            ),
            (r#"["method", "api-key"]"#, None, Some("GET, ada")),
            (
                r#"{ first-of = ["api-key", "method"] }"#,
                Some("GET"),
                Some("ada"),
            ),
        ] {
            assert_eq!(
                (key(by, &v4).as_deref(), key(by, &v6).as_deref()),
                (of_v4, of_v6),
                "{by}"
            );
        }
    }

    #[test]
    fn what_no_log_has_is_named() {
        let unknown = |by: &str| {
            let file: toml::Table = format!("by = {by}").parse().unwrap();
            By::read(
                &file["by"],
                &Known {
                    fields: &[],
                    headers: HEADERS,
                },
            )
            .unknown()
            .map(str::to_owned)
        };
        assert_eq!(
            unknown(r#"["client-ip", "header:x-tenant"]"#).as_deref(),
            Some("header:x-tenant")
        );
        assert_eq!(
            unknown(r#"{ first-of = ["api-key", "client-ip"] }"#).as_deref(),
            Some("api-key")
        );
        assert_eq!(unknown(r#""header:host""#).as_deref(), Some("header:host"));
        assert_eq!(unknown(r#""client-ip""#), None);
    }
}
