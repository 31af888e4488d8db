//! From the peer and one header to the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue};

use super::address_origin::{AddressOrigin, ResolvedAddress};
use super::address_text::{EntryAddress, read_bare, trim};
use super::source::{ClientHeader, ClientIp, Format, MAX_HOPS, Position};
use super::trusted_proxies::TrustedProxies;
use super::{forwarded, x_forwarded_for};

impl ClientIp {
    /// Finds the client of a request that arrived from `peer` with these `headers`.
    ///
    /// The result depends on `peer` and the lines of the configured header, and on nothing else. No
    /// more than [`MAX_HOPS`] entries are read, and no element of `Forwarded` over 1 KiB. Nothing
    /// is allocated, and it cannot fail. A link-local peer is the same client on every interface,
    /// because an [`IpAddr`] has no scope.
    #[inline]
    #[must_use]
    pub fn resolve(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> ResolvedAddress {
        let address = peer.map(|peer| self.canonical(peer));
        match &self.header {
            None => ResolvedAddress {
                address,
                origin: address.map_or(AddressOrigin::NoPeer, |_| AddressOrigin::Peer),
            },
            Some(header) => self.named(header, address, headers),
        }
    }

    /// The client that a header names, or else the peer.
    fn named(
        &self,
        header: &ClientHeader,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> ResolvedAddress {
        if let Some(trusted) = header.trusted()
            && !peer.is_some_and(|peer| trusted.contains(peer))
        {
            return ResolvedAddress {
                address: peer,
                origin: peer.map_or(AddressOrigin::NoPeer, |_| AddressOrigin::UntrustedPeer),
            };
        }
        let lines = headers.get_all(&header.name).iter();
        let mut lines = lines.map(HeaderValue::as_bytes);
        let canonical = |address| self.canonical(address);
        match header.format {
            Format::XForwardedFor => {
                let entries = lines.rev().flat_map(x_forwarded_for::split);
                let read = |entry: &[u8]| x_forwarded_for::read(entry).map(canonical);
                header.client.find(peer, entries, read)
            }
            Format::Forwarded => {
                let entries = lines.rev().flat_map(forwarded::split);
                let read = |entry: &[u8]| forwarded::read(entry).map(canonical);
                header.client.find(peer, entries, read)
            }
            Format::Single => {
                let entry = match (lines.next(), lines.next()) {
                    (None, _) => Err(AddressOrigin::MissingHeader),
                    (Some(_), Some(_)) => Err(AddressOrigin::Repeated),
                    (Some(value), None) => read_bare(trim(value)).map(canonical),
                };
                claim(peer, entry)
            }
        }
    }
}

impl Position {
    fn find<'a>(
        &self,
        peer: Option<IpAddr>,
        entries: impl Iterator<Item = &'a [u8]>,
        read: impl Fn(&[u8]) -> EntryAddress,
    ) -> ResolvedAddress {
        match self {
            Self::RightmostUntrusted(trusted) => {
                rightmost_untrusted(peer, trusted, bounded(entries), read)
            }
            Self::FromRight(hops) => from_right(peer, *hops, bounded(entries), read),
        }
    }
}

/// The text of an entry, or why it is not read.
type EntryText<'a> = Result<&'a [u8], AddressOrigin>;

/// Trims entries and drops empty ones. An error takes the turn of the first entry over the bound,
/// which counts empty ones too.
fn bounded<'a>(entries: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = EntryText<'a>> {
    let numbered = entries.map(trim).zip(0u8..=MAX_HOPS);
    numbered
        .filter(|(entry, at)| *at == MAX_HOPS || !entry.is_empty())
        .map(|(entry, at)| match at {
            MAX_HOPS => Err(AddressOrigin::TooManyHops),
            _ => Ok(entry),
        })
}

fn rightmost_untrusted<'a>(
    peer: Option<IpAddr>,
    trusted: &TrustedProxies,
    entries: impl Iterator<Item = EntryText<'a>>,
    read: impl Fn(&[u8]) -> EntryAddress,
) -> ResolvedAddress {
    let mut nearest = None;
    for entry in entries {
        match entry.and_then(&read) {
            Ok(hop) if trusted.contains(hop) => nearest = Some(hop),
            entry => return claim(nearest.or(peer), entry),
        }
    }
    let origin = nearest.map_or(AddressOrigin::MissingHeader, |_| AddressOrigin::AllTrusted);
    claim(peer, Err(origin))
}

fn from_right<'a>(
    peer: Option<IpAddr>,
    hops: u8,
    entries: impl Iterator<Item = EntryText<'a>>,
    read: impl Fn(&[u8]) -> EntryAddress,
) -> ResolvedAddress {
    let mut missing = hops;
    for entry in entries {
        missing -= 1;
        if missing == 0 || entry.is_err() {
            return claim(peer, entry.and_then(read));
        }
    }
    let is_empty = missing == hops;
    claim(
        peer,
        Err(if is_empty {
            AddressOrigin::MissingHeader
        } else {
            AddressOrigin::TooFewHops
        }),
    )
}

/// The address that the one decisive entry names, or else that of the nearest trusted hop.
fn claim(nearest: Option<IpAddr>, entry: EntryAddress) -> ResolvedAddress {
    match entry {
        Ok(client) => ResolvedAddress {
            address: Some(client),
            origin: AddressOrigin::Forwarded,
        },
        Err(origin) => ResolvedAddress {
            address: nearest,
            origin,
        },
    }
}
