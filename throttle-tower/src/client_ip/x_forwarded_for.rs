//! The entries of `X-Forwarded-For`, from right to left.

use std::net::{IpAddr, Ipv4Addr};

use super::address_origin::AddressOrigin;
use super::address_text::{EntryAddress, address, ascii, bracketed, is_port};

/// The entries of one line, nearest hop first.
pub(super) fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|&byte| byte == b',')
}

/// Reads one trimmed entry: an address, an IPv4 address with a port, or an IPv6 address in brackets
/// with or without one. The zone of an IPv6 address is left out.
///
/// A port is legal: Azure's gateway always appends it, and AWS's can. `v6:port` without brackets is
/// malformed, because the port would read as a part of the address.
pub(super) fn read(entry: &[u8]) -> EntryAddress {
    ascii(entry)
        .and_then(client)
        .ok_or(AddressOrigin::Malformed)
}

fn client(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = bracketed(rest)?;
        return port.is_none_or(is_port).then_some(address);
    }
    address(text).or_else(|| {
        let (host, port) = text.split_once(':')?;
        let host: Ipv4Addr = host.parse().ok()?;
        is_port(port).then_some(host.into())
    })
}
