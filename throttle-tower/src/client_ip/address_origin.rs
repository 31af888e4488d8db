use std::net::IpAddr;

/// The client's address, and how it was found: what [`ClientIp::resolve`](super::ClientIp::resolve)
/// returns.
///
/// ```
/// use http::HeaderMap;
/// use throttle_tower::client_ip::{AddressOrigin, ClientIp};
///
/// let without_connection = ClientIp::peer().resolve(None, &HeaderMap::new());
/// assert_eq!(
///     (without_connection.address, without_connection.origin),
///     (None, AddressOrigin::NoPeer)
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedAddress {
    /// The address whose budget the request spends, whatever the origin. An IPv6 address that
    /// [stands for an IPv4 address](throttle_core::canonical_ip) is converted to that. It is not
    /// masked; see [`IpPrefix`](super::IpPrefix). `None` if there is neither a peer nor a
    /// believable header.
    pub address: Option<IpAddr>,
    /// How the address was found, or why it is not the client's. Count it in a metric.
    pub origin: AddressOrigin,
}

/// How an address was found, or why the client's is unknown and that of a nearer hop is used.
///
/// The entries of a list header are read from the right until one is the client's or cannot be
/// used. "The nearest trusted hop" is the last trusted proxy read before that entry, or the peer if
/// there is no such proxy. With a hop count, or with [`ClientIp::header`](super::ClientIp::header),
/// it is always the peer.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use throttle_tower::client_ip::{AddressOrigin, ClientIp, TrustedProxies};
///
/// # fn main() -> Result<(), throttle_tower::ConfigError> {
/// let behind_proxy = ClientIp::x_forwarded_for(TrustedProxies::new(["10.0.0.1"])?);
/// let headers = HeaderMap::from_iter([(
///     "x-forwarded-for".parse().unwrap(),
///     HeaderValue::from_static("unknown"),
/// )]);
/// let resolved = behind_proxy.resolve(Some([10, 0, 0, 1].into()), &headers);
/// assert_eq!(resolved.origin, AddressOrigin::Malformed);
/// assert_eq!(
///     resolved.address,
///     Some([10, 0, 0, 1].into()),
///     "the nearest trusted hop"
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressOrigin {
    /// The peer, as configured.
    Peer,
    /// The client, as named by the configured header.
    Forwarded,
    /// The peer is not a trusted proxy, so it is the client, and its headers were ignored.
    UntrustedPeer,
    /// The configured header is absent or empty; the peer is used. A client can cause this: it
    /// names the header in `Connection`, and a proxy that obeys removes it. So do not exempt such a
    /// request from limits: a trusted peer is not a trusted client.
    MissingHeader,
    /// The entry where the client's address is expected is not an address; the nearest trusted hop
    /// is used.
    Malformed,
    /// The entry where the client's address is expected is `unknown` or a `_name`: the proxy that
    /// wrote it hides the address. The nearest trusted hop is used. The entry further left is not,
    /// because the client may have written it.
    Obfuscated,
    /// No client among the last [`MAX_HOPS`](super::MAX_HOPS) entries; the nearest trusted hop is
    /// used.
    TooManyHops,
    /// Every entry is a trusted proxy: the request began inside the trusted networks, or they are
    /// too broad. The peer is used, because a machine inside could have written any entry.
    AllTrusted,
    /// The list is shorter than the configured number of hops; the peer is used.
    TooFewHops,
    /// A header that must occur once occurs more often; the peer is used.
    Repeated,
    /// The transport has no peer address (a Unix socket, a test), and the source needs one.
    NoPeer,
}
