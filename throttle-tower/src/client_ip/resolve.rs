//! From the peer and one header to the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::entry::{self, Entry};
use super::forwarded;
use super::source::{ClientIp, Format, Position, Source};
use super::trusted::TrustedProxies;

/// Most entries of a list header that are looked at: 20. Chains of real proxies are far shorter, and a header may be long.
pub const MAX_HOPS: u8 = 20;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who the client is, and how that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// The address whose budget the request spends, whatever the outcome. Canonical: IPv4-mapped addresses are IPv4.
    /// Not masked; see [`IpPrefix`](super::IpPrefix). `None` if there is neither a peer nor a believable header.
    pub address: Option<IpAddr>,
    /// How the address was found, or why it is not the client's. Worth counting.
    pub outcome: Outcome,
}

/// How an address was found, or why it is only that of a hop nearer to this process.
///
/// "The nearest trusted hop" is the furthest proxy that the chain of trust reaches; often it is the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The peer, as configured.
    Peer,
    /// The client, as named by the configured header.
    Forwarded,
    /// The peer is not a trusted proxy, so it is the client, and what it says in headers was ignored.
    UntrustedPeer,
    /// The configured header is absent or empty; the peer is used. A client can cause this if a proxy lets it name
    /// the header in `Connection`. It is never a reason to exempt the request: a trusted peer is not a trusted client.
    MissingHeader,
    /// The entry in question is not an address, so it names nobody; the nearest trusted hop is used.
    Malformed,
    /// The entry in question is `unknown` or a `_name`: its proxy hides the client. The nearest trusted hop is used. The
    /// entry further left is not: it is that hidden client's own claim.
    Obfuscated,
    /// No client among the last [`MAX_HOPS`] entries; the nearest trusted hop is used.
    TooManyHops,
    /// Every entry is a trusted proxy: the request began inside the trusted networks, or they are too broad. The peer
    /// is used, since a machine inside could write any entry it likes.
    AllTrusted,
    /// The list is shorter than the configured number of hops; the peer is used.
    TooFewHops,
    /// A header that must occur once occurs more often; the peer is used.
    Repeated,
    /// The transport has no peer address (a Unix socket, a test), and the source needs one.
    NoPeer,
}

impl ClientIp {
    /// Finds the client of a request that arrived from `peer` with these `headers`.
    ///
    /// The result depends on `peer` and the lines of the configured header, on nothing else. It reads no more than
    /// [`MAX_HOPS`] entries, and of `Forwarded` no element over 1 KiB; it allocates nothing and cannot fail. A link-local peer's scope is no part of [`IpAddr`], so that it is
    /// one client on whatever interface.
    #[must_use]
    pub fn resolve(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Resolved {
        let peer = peer.map(|peer| peer.to_canonical());
        match &self.source {
            Source::Peer => Resolved { address: peer, outcome: peer.map_or(Outcome::NoPeer, |_| Outcome::Peer) },
            Source::Single { name, trusted } => single(peer, trusted, headers.get_all(name).iter()),
            Source::List { format: Format::XForwardedFor, client } => {
                let lines = headers.get_all(&X_FORWARDED_FOR).iter().rev();
                client.find(peer, lines.map(HeaderValue::as_bytes).flat_map(entry::split), entry::read)
            }
            Source::List { format: Format::Forwarded, client } => {
                let lines = headers.get_all(header::FORWARDED).iter().rev();
                client.find(peer, lines.map(HeaderValue::as_bytes).flat_map(forwarded::split), forwarded::read)
            }
        }
    }
}

impl Position {
    fn find<'a>(
        &self,
        peer: Option<IpAddr>,
        entries: impl Iterator<Item = &'a [u8]>,
        read: fn(&[u8]) -> Entry,
    ) -> Resolved {
        match self {
            Self::RightmostUntrusted(trusted) => rightmost_untrusted(peer, trusted, bounded(entries), read),
            Self::FromRight(hops) => from_right(peer, *hops, bounded(entries), read),
        }
    }
}

/// Trims entries and drops empty ones; `None` in place of the first entry over the bound, which counts empty ones too.
fn bounded<'a>(entries: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = Option<&'a [u8]>> {
    let numbered = entries.map(entry::trim).zip(0u8..=MAX_HOPS);
    numbered.map(|(entry, at)| (at < MAX_HOPS).then_some(entry)).filter(|entry| entry.is_none_or(|e| !e.is_empty()))
}

fn rightmost_untrusted<'a>(
    peer: Option<IpAddr>,
    trusted: &TrustedProxies,
    entries: impl Iterator<Item = Option<&'a [u8]>>,
    read: fn(&[u8]) -> Entry,
) -> Resolved {
    let peer = match trusted_peer(peer, trusted) {
        Ok(peer) => peer,
        Err(resolved) => return resolved,
    };
    let found = |address, outcome| Resolved { address: Some(address), outcome };
    let mut nearest = None;
    for entry in entries {
        let vouched = nearest.unwrap_or(peer);
        let Some(entry) = entry else { return found(vouched, Outcome::TooManyHops) };
        match read(entry) {
            Entry::Address(hop) if trusted.contains(hop) => nearest = Some(hop),
            Entry::Address(client) => return found(client, Outcome::Forwarded),
            Entry::Obfuscated => return found(vouched, Outcome::Obfuscated),
            Entry::Malformed => return found(vouched, Outcome::Malformed),
        }
    }
    found(peer, if nearest.is_some() { Outcome::AllTrusted } else { Outcome::MissingHeader })
}

fn from_right<'a>(
    peer: Option<IpAddr>,
    hops: u8,
    entries: impl Iterator<Item = Option<&'a [u8]>>,
    read: fn(&[u8]) -> Entry,
) -> Resolved {
    let fallback = |outcome| Resolved { address: peer, outcome };
    let mut missing = hops;
    for entry in entries {
        let Some(entry) = entry else { return fallback(Outcome::TooManyHops) };
        missing -= 1;
        if missing == 0 {
            return claim(peer, read(entry));
        }
    }
    fallback(if missing == hops { Outcome::MissingHeader } else { Outcome::TooFewHops })
}

fn single<'a>(
    peer: Option<IpAddr>,
    trusted: &TrustedProxies,
    mut values: impl Iterator<Item = &'a HeaderValue>,
) -> Resolved {
    let peer = match trusted_peer(peer, trusted) {
        Ok(peer) => Some(peer),
        Err(resolved) => return resolved,
    };
    match (values.next(), values.next()) {
        (None, _) => Resolved { address: peer, outcome: Outcome::MissingHeader },
        (Some(_), Some(_)) => Resolved { address: peer, outcome: Outcome::Repeated },
        (Some(value), None) => claim(peer, entry::read_bare(entry::trim(value.as_bytes()))),
    }
}

/// The peer if it may speak for a client; otherwise the answer, with headers ignored.
fn trusted_peer(peer: Option<IpAddr>, trusted: &TrustedProxies) -> Result<IpAddr, Resolved> {
    let Some(peer) = peer else { return Err(Resolved { address: None, outcome: Outcome::NoPeer }) };
    if trusted.contains(peer) {
        return Ok(peer);
    }
    Err(Resolved { address: Some(peer), outcome: Outcome::UntrustedPeer })
}

/// The address that the one decisive entry names, or else the peer's.
fn claim(peer: Option<IpAddr>, entry: Entry) -> Resolved {
    match entry {
        Entry::Address(client) => Resolved { address: Some(client), outcome: Outcome::Forwarded },
        Entry::Obfuscated => Resolved { address: peer, outcome: Outcome::Obfuscated },
        Entry::Malformed => Resolved { address: peer, outcome: Outcome::Malformed },
    }
}
