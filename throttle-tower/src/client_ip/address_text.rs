//! Addresses and ports as proxies write them.

use std::net::{IpAddr, Ipv6Addr};

/// What one entry of a list header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// An address, in canonical form.
    Address(IpAddr),
    /// `unknown` or `_name`: the proxy does not know the address, or does not disclose it.
    Obfuscated,
    /// Anything else.
    Malformed,
}

impl From<Option<IpAddr>> for Entry {
    fn from(address: Option<IpAddr>) -> Self {
        address.map_or(Self::Malformed, |address| Self::Address(address.to_canonical()))
    }
}

/// Longest entry that is read. The longest legal one, a full IPv6 address with brackets and port, has 53 bytes.
pub(super) const MAX_ENTRY: usize = 56;

/// Reads a value that must be one bare address, trimmed.
pub(super) fn read_bare(value: &[u8]) -> Entry {
    ascii(value).and_then(|text| text.parse().ok()).into()
}

/// The text of an entry short enough to be one.
pub(super) fn ascii(entry: &[u8]) -> Option<&str> {
    // `IpAddr` parses ASCII only, so other scripts' digits and zone ids fail there.
    if entry.len() > MAX_ENTRY { None } else { std::str::from_utf8(entry).ok() }
}

/// Reads what follows a `[`: an IPv6 address, `]`, and optionally `:` and an unchecked port.
pub(super) fn bracketed(rest: &str) -> Option<(IpAddr, Option<&str>)> {
    let (address, after) = rest.split_once(']')?;
    let address = address.parse::<Ipv6Addr>().ok()?;
    match after.strip_prefix(':') {
        None if after.is_empty() => Some((address.into(), None)),
        port => Some((address.into(), Some(port?))),
    }
}

/// One to five digits of at most 65535. The value is not used, but an entry with a bad port is malformed.
pub(super) fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Without the spaces and tabs around it: HTTP's optional whitespace, and no other.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(|b| !blank(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !blank(b)).map_or(start, |last| last + 1);
    &bytes[start..end]
}
