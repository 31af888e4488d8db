//! From the peer and one header to the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::address_origin::{AddressOrigin, Resolved};
use super::address_text::{Entry, read_bare, trim};
use super::source::{ClientIp, Format, MAX_HOPS, Position, Source};
use super::trusted_proxies::TrustedProxies;
use super::{forwarded, x_forwarded_for};

pub(super) static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

impl ClientIp {
    /// Finds the client of a request that arrived from `peer` with these `headers`.
    ///
    /// The result depends on `peer` and the lines of the configured header, and on nothing else. No
    /// more than [`MAX_HOPS`] entries are read, and no element of `Forwarded` over 1 KiB. Nothing
    /// is allocated, and it cannot fail. A link-local peer is the same client on every interface,
    /// because an [`IpAddr`] has no scope.
    #[inline]
    #[must_use]
    pub fn resolve(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Resolved {
        let peer = peer.map(|peer| self.canonical(peer));
        match &self.source {
            Source::Peer => Resolved {
                address: peer,
                origin: peer.map_or(AddressOrigin::NoPeer, |_| AddressOrigin::Peer),
            },
            Source::Single { name, trusted } => {
                self.single(peer, trusted, headers.get_all(name).iter())
            }
            Source::List { format, client } => self.find_in_list(client, *format, peer, headers),
        }
    }

    #[inline(never)]
    fn find_in_list(
        &self,
        client: &Position,
        format: Format,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Resolved {
        match format {
            Format::XForwardedFor => {
                let lines = headers.get_all(&X_FORWARDED_FOR).iter().rev();
                let entries = lines
                    .map(HeaderValue::as_bytes)
                    .flat_map(x_forwarded_for::split);
                client.find(peer, entries, |entry| {
                    self.canonical_entry(x_forwarded_for::read(entry))
                })
            }
            Format::Forwarded => {
                let lines = headers.get_all(header::FORWARDED).iter().rev();
                let entries = lines.map(HeaderValue::as_bytes).flat_map(forwarded::split);
                client.find(peer, entries, |entry| {
                    self.canonical_entry(forwarded::read(entry))
                })
            }
        }
    }

    #[inline(never)]
    fn single<'a>(
        &self,
        peer: Option<IpAddr>,
        trusted: &TrustedProxies,
        mut values: impl Iterator<Item = &'a HeaderValue>,
    ) -> Resolved {
        let peer = match trusted_peer(peer, trusted) {
            Ok(peer) => Some(peer),
            Err(resolved) => return resolved,
        };
        match (values.next(), values.next()) {
            (None, _) => Resolved {
                address: peer,
                origin: AddressOrigin::MissingHeader,
            },
            (Some(_), Some(_)) => Resolved {
                address: peer,
                origin: AddressOrigin::Repeated,
            },
            (Some(value), None) => claim(
                peer,
                self.canonical_entry(read_bare(trim(value.as_bytes()))),
            ),
        }
    }

    fn canonical_entry(&self, entry: Entry) -> Entry {
        match entry {
            Entry::Address(address) => Entry::Address(self.canonical(address)),
            other => other,
        }
    }
}

impl Position {
    fn find<'a>(
        &self,
        peer: Option<IpAddr>,
        entries: impl Iterator<Item = &'a [u8]>,
        read: impl Fn(&[u8]) -> Entry,
    ) -> Resolved {
        match self {
            Self::RightmostUntrusted(trusted) => {
                rightmost_untrusted(peer, trusted, bounded(entries), read)
            }
            Self::FromRight(hops) => from_right(peer, *hops, bounded(entries), read),
        }
    }
}

/// Trims entries and drops empty ones; `None` in place of the first entry over the bound, which
/// counts empty ones too.
fn bounded<'a>(entries: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = Option<&'a [u8]>> {
    let numbered = entries.map(trim).zip(0u8..=MAX_HOPS);
    numbered
        .map(|(entry, at)| (at < MAX_HOPS).then_some(entry))
        .filter(|entry| entry.is_none_or(|e| !e.is_empty()))
}

fn rightmost_untrusted<'a>(
    peer: Option<IpAddr>,
    trusted: &TrustedProxies,
    entries: impl Iterator<Item = Option<&'a [u8]>>,
    read: impl Fn(&[u8]) -> Entry,
) -> Resolved {
    let peer = match trusted_peer(peer, trusted) {
        Ok(peer) => peer,
        Err(resolved) => return resolved,
    };
    let found = |address, origin| Resolved {
        address: Some(address),
        origin,
    };
    let mut nearest = None;
    for entry in entries {
        let vouched = nearest.unwrap_or(peer);
        let Some(entry) = entry else {
            return found(vouched, AddressOrigin::TooManyHops);
        };
        match read(entry) {
            Entry::Address(hop) if trusted.contains(hop) => nearest = Some(hop),
            Entry::Address(client) => return found(client, AddressOrigin::Forwarded),
            Entry::Obfuscated => return found(vouched, AddressOrigin::Obfuscated),
            Entry::Malformed => return found(vouched, AddressOrigin::Malformed),
        }
    }
    found(
        peer,
        if nearest.is_some() {
            AddressOrigin::AllTrusted
        } else {
            AddressOrigin::MissingHeader
        },
    )
}

fn from_right<'a>(
    peer: Option<IpAddr>,
    hops: u8,
    entries: impl Iterator<Item = Option<&'a [u8]>>,
    read: impl Fn(&[u8]) -> Entry,
) -> Resolved {
    let fallback = |origin| Resolved {
        address: peer,
        origin,
    };
    let mut missing = hops;
    for entry in entries {
        let Some(entry) = entry else {
            return fallback(AddressOrigin::TooManyHops);
        };
        missing -= 1;
        if missing == 0 {
            return claim(peer, read(entry));
        }
    }
    fallback(if missing == hops {
        AddressOrigin::MissingHeader
    } else {
        AddressOrigin::TooFewHops
    })
}

/// The peer if it may speak for a client; otherwise the answer, with headers ignored.
fn trusted_peer(peer: Option<IpAddr>, trusted: &TrustedProxies) -> Result<IpAddr, Resolved> {
    let Some(peer) = peer else {
        return Err(Resolved {
            address: None,
            origin: AddressOrigin::NoPeer,
        });
    };
    if trusted.contains(peer) {
        return Ok(peer);
    }
    Err(Resolved {
        address: Some(peer),
        origin: AddressOrigin::UntrustedPeer,
    })
}

/// The address that the one decisive entry names, or else the peer's.
fn claim(peer: Option<IpAddr>, entry: Entry) -> Resolved {
    match entry {
        Entry::Address(client) => Resolved {
            address: Some(client),
            origin: AddressOrigin::Forwarded,
        },
        Entry::Obfuscated => Resolved {
            address: peer,
            origin: AddressOrigin::Obfuscated,
        },
        Entry::Malformed => Resolved {
            address: peer,
            origin: AddressOrigin::Malformed,
        },
    }
}
