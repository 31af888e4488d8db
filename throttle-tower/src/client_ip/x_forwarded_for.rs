//! The entries of `X-Forwarded-For`, from right to left.

use std::net::{IpAddr, Ipv4Addr};

use super::address_text::{Entry, address, ascii, bracketed, is_port};

/// The entries of one line, nearest hop first.
pub(super) fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|&byte| byte == b',')
}

/// Reads one trimmed entry: an address, an IPv4 address with a port, or an IPv6 address in brackets
/// with or without one. The zone of an IPv6 address is left out.
///
/// A port is legal: Azure's gateway always appends it, and AWS's can. `v6:port` without brackets is
/// malformed, because the port would read as a part of the address.
pub(super) fn read(entry: &[u8]) -> Entry {
    ascii(entry)
        .and_then(|text| match text.strip_prefix('[') {
            Some(rest) => bracketed(rest)
                .and_then(|(address, port)| port.is_none_or(is_port).then_some(address)),
            None => address(text).or_else(|| {
                let (host, port) = text.split_once(':')?;
                host.parse::<Ipv4Addr>()
                    .ok()
                    .filter(|_| is_port(port))
                    .map(IpAddr::from)
            }),
        })
        .into()
}
