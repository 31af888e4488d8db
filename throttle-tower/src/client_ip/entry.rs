//! One entry of a list header, and the entries of `X-Forwarded-For`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What one entry of a list header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// An address, in canonical form.
    Address(IpAddr),
    /// The proxy knows the address, or not, and does not tell: `unknown` or `_name`.
    Obfuscated,
    /// Anything else.
    Malformed,
}

impl From<Option<IpAddr>> for Entry {
    fn from(address: Option<IpAddr>) -> Self {
        address.map_or(Self::Malformed, |address| Self::Address(address.to_canonical()))
    }
}

/// Longest entry worth looking at. The longest legal one, a full IPv6 address with brackets and port, has 53 bytes.
pub(super) const MAX_ENTRY: usize = 56;

/// The entries of one `X-Forwarded-For` line, nearest hop first.
pub(super) fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|&byte| byte == b',')
}

/// Reads one trimmed entry: an address, an IPv4 address with a port, or an IPv6 address in brackets with or without one.
///
/// Azure's gateway always appends the port and AWS's can, so a port is not a fault. `v6:port` without brackets is: the
/// port would read as a part of the address.
pub(super) fn read(entry: &[u8]) -> Entry {
    ascii(entry)
        .and_then(|text| match text.strip_prefix('[') {
            Some(rest) => bracketed(rest).and_then(|(address, port)| port.is_none_or(is_port).then_some(address)),
            None => text.parse().ok().or_else(|| {
                let (host, port) = text.split_once(':')?;
                host.parse::<Ipv4Addr>().ok().filter(|_| is_port(port)).map(IpAddr::from)
            }),
        })
        .into()
}

/// Reads a value that must be one bare address, trimmed.
pub(super) fn read_bare(value: &[u8]) -> Entry {
    ascii(value).and_then(|text| text.parse().ok()).into()
}

/// The text of an entry short enough to be one.
pub(super) fn ascii(entry: &[u8]) -> Option<&str> {
    // `IpAddr` parses ASCII only, so other scripts' digits and zone ids fail there.
    if entry.len() > MAX_ENTRY { None } else { std::str::from_utf8(entry).ok() }
}

/// Reads what follows a `[`: an IPv6 address, `]`, and perhaps `:` and an unchecked port.
pub(super) fn bracketed(rest: &str) -> Option<(IpAddr, Option<&str>)> {
    let (address, after) = rest.split_once(']')?;
    let address = address.parse::<Ipv6Addr>().ok()?;
    match after.strip_prefix(':') {
        None if after.is_empty() => Some((address.into(), None)),
        port => Some((address.into(), Some(port?))),
    }
}

/// One to five digits of at most 65535. The value is of no interest, but an entry with a bad port is not an entry.
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
