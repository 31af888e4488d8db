use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use throttle_core::Key;

use super::KeyExtractor;
use crate::client_ip::{ClientIp, IpPrefix};

/// The address at the other end of the connection, as an extension of the request.
///
/// Put it there yourself when your server does not: for a Unix socket behind a proxy, or an address taken from the PROXY
/// protocol by the listener. It takes precedence over `SocketAddr` and axum's `ConnectInfo<SocketAddr>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub IpAddr);

/// The peer of a request, from whatever extension holds it.
pub(crate) fn peer(parts: &Parts) -> Option<IpAddr> {
    if let Some(PeerAddr(address)) = parts.extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) = parts.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(address.ip());
    }
    parts.extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

fn extract(client: &ClientIp, prefix: IpPrefix, parts: &Parts) -> Option<Key> {
    let address = client.resolve(peer(parts), &parts.headers).address?;
    let bits = if address.is_ipv4() { prefix.v4() } else { prefix.v6() };
    Some(Key::builder().network(address, bits).finish())
}

/// By IPv4 address, or IPv6 network of 64 bits: a client owns at least that much of the IPv6 space.
impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        extract(self, IpPrefix::default(), parts)
    }

    fn uses_peer(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "ClientIp".to_owned()
    }
}

impl ClientIp {
    /// Keys by networks of another size than 32 bits of IPv4 and 64 of IPv6.
    ///
    /// As a second tier beside the default, it stops a client that rotates through the /64s of its /48:
    ///
    /// ```
    /// use throttle_tower::client_ip::{ClientIp, IpPrefix};
    /// use throttle_tower::{Gcra, Rate, all, limit};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_net = ClientIp::peer().by_prefix(IpPrefix::new(24, 48)?);
    /// let limits = all([
    ///     limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()),
    ///     limit("per-net", Gcra::new(Rate::per_second(100))).by(per_net),
    /// ]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn by_prefix(self, prefix: IpPrefix) -> Masked {
        Masked { client: self, prefix }
    }
}

/// A client's network; see [`ClientIp::by_prefix`].
#[derive(Clone, Debug)]
pub struct Masked {
    client: ClientIp,
    prefix: IpPrefix,
}

impl KeyExtractor for Masked {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        extract(&self.client, self.prefix, parts)
    }

    fn uses_peer(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.client.describe()
    }
}
