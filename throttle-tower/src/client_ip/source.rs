//! Where the client's address comes from: exactly one source, chosen in the configuration.

use std::net::IpAddr;

use http::{HeaderName, header};
use throttle_core::{ConfigError, canonical_ip};

use super::error::refused;
use super::ip_net::IpNet;
use super::ip_prefix::IpPrefix;
use super::nat64::Nat64;
use super::trusted_proxies::TrustedProxies;

pub(super) static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The largest number of entries that are read from a list header: 20. Chains of real proxies are
/// far shorter, and a header may be long.
pub const MAX_HOPS: u8 = 20;

/// How to find the client's address. The [module](super) says which constructor suits which
/// deployment.
///
/// Cloning copies the list of trusted networks; share a clone rather than making one for every
/// request.
///
/// ```
/// use http::HeaderMap;
/// use throttle_tower::client_ip::ClientIp;
///
/// let resolved = ClientIp::peer().resolve(Some([203, 0, 113, 9].into()), &HeaderMap::new());
/// assert_eq!(resolved.address, Some([203, 0, 113, 9].into()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIp {
    /// The header that names the client. `None` if the peer is the client.
    pub(super) header: Option<ClientHeader>,
    nat64: Option<Nat64>,
    /// How much of an address is a key.
    pub(crate) prefix: IpPrefix,
}

/// A header that names the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientHeader {
    pub(super) name: HeaderName,
    pub(super) format: Format,
    pub(super) client: Position,
}

/// How a header names the hops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    XForwardedFor,
    Forwarded,
    /// One bare address.
    Single,
}

/// Which entry of the header is the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Position {
    /// The first one from the right that is not a proxy.
    RightmostUntrusted(TrustedProxies),
    /// The n-th one from the right, counted from 1.
    FromRight(u8),
}

impl ClientIp {
    /// The address of the connection itself. No header is read.
    ///
    /// Behind a proxy this is the proxy's address, and all clients share its budget.
    #[must_use]
    pub fn peer() -> Self {
        Self::of(None)
    }

    /// The rightmost entry of `X-Forwarded-For` that is not one of the `trusted` proxies. If the
    /// peer is not a trusted proxy, the peer is the client.
    ///
    /// Every trusted proxy must *append* the address it was called from. nginx does so with
    /// `$proxy_add_x_forwarded_for`. If it passes the header through untouched, the client wrote
    /// all of it.
    #[must_use]
    pub fn x_forwarded_for(trusted: TrustedProxies) -> Self {
        Self::list(Format::XForwardedFor, Position::RightmostUntrusted(trusted))
    }

    /// The entry number `hops` of `X-Forwarded-For`, counted from the right and from 1, whatever
    /// the peer is.
    ///
    /// `hops` is the number of proxies that append to the list. With too small a number the key is
    /// a proxy's address; with too large a number it is text from the client. Entries further right
    /// are counted, not read; empty ones are not counted.
    ///
    /// **You must ensure** that nothing but those proxies can reach this process. The peer is not
    /// checked, so a client that connects directly writes the whole list itself. Where the proxies'
    /// addresses are known, prefer [`x_forwarded_for`](Self::x_forwarded_for). A hop count also
    /// works without a peer, as on a Unix socket.
    ///
    /// # Errors
    ///
    /// If `hops` is 0 or over [`MAX_HOPS`].
    pub fn x_forwarded_for_hops(hops: u8) -> Result<Self, ConfigError> {
        Self::hops(Format::XForwardedFor, hops)
    }

    /// As [`x_forwarded_for`](Self::x_forwarded_for), for the `Forwarded` header of RFC 7239.
    ///
    /// Each proxy's element must be well formed and have a `for`: quotes around IPv6 addresses and
    /// around anything with a port, no parameter twice, no whitespace around `;`. `unknown` and
    /// `_hidden` names are not addresses. The element to the left of such a name is not used
    /// instead: see [`AddressOrigin::Obfuscated`](super::AddressOrigin::Obfuscated). An element over
    /// 1024 bytes is not read, and counts as malformed.
    #[must_use]
    pub fn forwarded(trusted: TrustedProxies) -> Self {
        Self::list(Format::Forwarded, Position::RightmostUntrusted(trusted))
    }

    /// As [`x_forwarded_for_hops`](Self::x_forwarded_for_hops), with the same requirement, for the
    /// `Forwarded` header.
    ///
    /// # Errors
    ///
    /// If `hops` is 0 or over [`MAX_HOPS`].
    pub fn forwarded_hops(hops: u8) -> Result<Self, ConfigError> {
        Self::hops(Format::Forwarded, hops)
    }

    /// The one address in the header `name`, if the peer is one of the `trusted` proxies.
    ///
    /// The header must occur once and hold one bare address, or the peer's address is used. The
    /// proxy must *overwrite* what the client sent. `CF-Connecting-IP`, `Fly-Client-IP` and
    /// `X-Azure-SocketIP` always do; `True-Client-IP`, `Fastly-Client-IP`, `X-Azure-ClientIP` and
    /// `X-Real-IP` only if you configured the proxy so.
    ///
    /// Other customers of the same CDN share its addresses and can point it at your origin. Where
    /// that matters, ask for a client certificate or a shared secret as well. Requests from
    /// Cloudflare Workers of other zones all carry the same `CF-Connecting-IP`.
    ///
    /// # Errors
    ///
    /// If `name` is not a header name, or has an underscore: servers disagree on whether
    /// `x_real_ip` is `x-real-ip`, and a client can exploit that.
    pub fn header<N>(name: N, trusted: TrustedProxies) -> Result<Self, ConfigError>
    where
        N: AsRef<str>,
    {
        let name = name.as_ref();
        let refuse = |problem, remedy| refused("client address header", name, problem, remedy);
        if name.contains('_') {
            return Err(refuse(
                "has an underscore",
                "write it with hyphens, as the proxy sends it",
            ));
        }
        let name = HeaderName::try_from(name).map_err(|_| {
            refuse(
                "is not a header name",
                "write the name alone, such as cf-connecting-ip",
            )
        })?;
        Ok(Self::of(Some(ClientHeader {
            name,
            format: Format::Single,
            client: Position::RightmostUntrusted(trusted),
        })))
    }

    /// Fly.io: the second entry of `X-Forwarded-For` from the right. The rightmost is the app's own
    /// public address.
    ///
    /// For apps that are reached through Fly's proxy only; with another proxy in front of Fly,
    /// count one hop more. As with [`x_forwarded_for_hops`](Self::x_forwarded_for_hops), you must
    /// ensure that nothing else can reach this process. That includes the other apps in the private
    /// network, which connect directly.
    #[must_use]
    pub fn fly_io() -> Self {
        Self::list(Format::XForwardedFor, Position::FromRight(2))
    }

    /// Google Cloud's external Application Load Balancer: the second entry of `X-Forwarded-For`
    /// from the right. It appends the client, then its own address.
    ///
    /// As with [`x_forwarded_for_hops`](Self::x_forwarded_for_hops), you must ensure that nothing
    /// else can reach this process: let only the load balancer's ranges through the firewall.
    #[must_use]
    pub fn google_cloud_load_balancer() -> Self {
        Self::list(Format::XForwardedFor, Position::FromRight(2))
    }

    /// Names the prefix of this network's NAT64 (RFC 6052), of 32, 40, 48, 56, 64 or 96 bits. An
    /// address with it is taken as the IPv4 address that it stands for, both as a key and where it
    /// is compared with the trusted proxies, which are then listed by their IPv4 addresses.
    /// Otherwise all clients behind the NAT64 may share the budget of one /64. The prefixes of
    /// [`canonical_ip`] are known without it. Calling it again replaces the prefix.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use throttle_tower::client_ip::ClientIp;
    ///
    /// let client_ip = ClientIp::peer().nat64("2001:db8:64::/96")?;
    /// let resolved = client_ip.resolve("2001:db8:64::192.0.2.1".parse().ok(), &HeaderMap::new());
    /// assert_eq!(resolved.address, Some([192, 0, 2, 1].into()));
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If `prefix` is not an IPv6 network of one of these lengths.
    pub fn nat64<N>(mut self, prefix: N) -> Result<Self, ConfigError>
    where
        N: TryInto<IpNet>,
        ConfigError: From<N::Error>,
    {
        self.nat64 = Some(Nat64::new(prefix.try_into()?)?);
        Ok(self)
    }

    /// The IPv4 address that an address stands for, or else that address.
    #[inline]
    pub(super) fn canonical(&self, address: IpAddr) -> IpAddr {
        match canonical_ip(address) {
            canonical @ IpAddr::V6(_) => self
                .nat64
                .map_or(canonical, |nat64| nat64.translated(canonical)),
            v4 => v4,
        }
    }

    /// Whether the header is read whatever the peer is, or nearly so.
    pub(crate) fn is_any_peers(&self) -> bool {
        self.header.as_ref().is_some_and(|header| {
            let trusted = header.trusted();
            trusted.is_none_or(|trusted| trusted.any_machine().is_some())
        })
    }

    /// The broad ones of the networks that it trusts; see [`TrustedProxies::broad_networks`].
    pub fn broad_networks(&self) -> impl Iterator<Item = IpNet> + '_ {
        let trusted = self.header.as_ref().and_then(ClientHeader::trusted);
        trusted.into_iter().flat_map(TrustedProxies::broad_networks)
    }

    fn of(header: Option<ClientHeader>) -> Self {
        Self {
            header,
            nat64: None,
            prefix: IpPrefix::default(),
        }
    }

    fn list(format: Format, client: Position) -> Self {
        let name = match format {
            Format::Forwarded => header::FORWARDED,
            _ => X_FORWARDED_FOR.clone(),
        };
        Self::of(Some(ClientHeader {
            name,
            format,
            client,
        }))
    }

    fn hops(format: Format, hops: u8) -> Result<Self, ConfigError> {
        if (1..=MAX_HOPS).contains(&hops) {
            return Ok(Self::list(format, Position::FromRight(hops)));
        }
        Err(refused(
            "hops",
            hops,
            "is out of range",
            "write 1 to 20: the number of your proxies that append to the header",
        ))
    }
}

impl ClientHeader {
    /// The proxies that must be the peer. `None` if any peer may be one.
    pub(super) fn trusted(&self) -> Option<&TrustedProxies> {
        match &self.client {
            Position::RightmostUntrusted(trusted) => Some(trusted),
            Position::FromRight(_) => None,
        }
    }
}
