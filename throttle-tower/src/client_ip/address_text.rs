//! Addresses and ports as proxies write them.

use std::net::{IpAddr, Ipv6Addr};

use super::address_origin::AddressOrigin;

/// The address that one entry of a header names, as it is written. The error is
/// [`Obfuscated`](AddressOrigin::Obfuscated) or [`Malformed`](AddressOrigin::Malformed).
pub(super) type EntryAddress = Result<IpAddr, AddressOrigin>;

/// Longest entry that is read. A full IPv6 address with brackets, port and the longest zone of
/// Linux, an interface's name of 15 characters, has 69 bytes.
pub(super) const MAX_ENTRY: usize = 72;

/// Reads a value that must be one bare address, trimmed.
pub(super) fn read_bare(value: &[u8]) -> EntryAddress {
    let address = ascii(value).and_then(address);
    address.ok_or(AddressOrigin::Malformed)
}

/// The text of an entry short enough to be one.
pub(super) fn ascii(entry: &[u8]) -> Option<&str> {
    // `IpAddr` parses ASCII only, so other scripts' digits fail there.
    if entry.len() > MAX_ENTRY {
        None
    } else {
        std::str::from_utf8(entry).ok()
    }
}

/// Reads an address without brackets and port. The zone of an IPv6 address, as in `fe80::1%eth0`,
/// is left out: it names an interface of the machine that wrote it, and means nothing here.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    match text.contains('%') {
        false => text.parse().ok(),
        true => ipv6(text).map(IpAddr::from),
    }
}

fn ipv6(text: &str) -> Option<Ipv6Addr> {
    match text.split_once('%') {
        Some((address, zone)) if is_zone(zone) => address.parse().ok(),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

/// The name or the number of an interface; URIs write `%25` before it.
fn is_zone(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@%".contains(&byte);
    !text.is_empty() && text.bytes().all(is_legal)
}

/// Reads what follows a `[`: an IPv6 address, `]`, and optionally `:` and an unchecked port.
pub(super) fn bracketed(rest: &str) -> Option<(IpAddr, Option<&str>)> {
    let (address, after) = rest.split_once(']')?;
    let address = ipv6(address)?;
    match after.strip_prefix(':') {
        None if after.is_empty() => Some((address.into(), None)),
        port => Some((address.into(), Some(port?))),
    }
}

/// One to five digits of at most 65535. The value is not used, but an entry with a bad port is
/// malformed.
pub(super) fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Without the spaces and tabs around it: HTTP's optional whitespace, and no other.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(|b| !blank(b)).unwrap_or(bytes.len());
    let end = bytes
        .iter()
        .rposition(|b| !blank(b))
        .map_or(start, |last| last + 1);
    &bytes[start..end]
}
