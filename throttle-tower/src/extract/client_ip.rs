use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;
use super::peer::peer;
use crate::client_ip::{ClientIp, IpPrefix};

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
    /// Keys by networks of the size that `prefix` sets. The default is 32 bits of IPv4 and 64 of IPv6.
    ///
    /// As a second limit beside the default, it stops a client that rotates through the /64s of its /48:
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use throttle_tower::client_ip::{ClientIp, IpPrefix};
    /// use throttle_tower::extract::PeerAddr;
    /// use throttle_tower::{Gcra, KeyExtractor, Rate, all, limit};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_net = ClientIp::peer().by_prefix(IpPrefix::new(24, 48)?);
    /// let key = |address: &str| {
    ///     let peer = PeerAddr(address.parse::<IpAddr>().unwrap());
    ///     per_net.extract(&http::Request::builder().extension(peer).body(()).unwrap().into_parts().0)
    /// };
    /// assert_eq!(key("2001:db8:7:1::1"), key("2001:db8:7:2::1"));
    ///
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
///
/// ```
/// use throttle_tower::KeyExtractor;
/// use throttle_tower::client_ip::{ClientIp, IpPrefix};
/// use throttle_tower::extract::Masked;
///
/// let per_net: Masked = ClientIp::peer().by_prefix(IpPrefix::new(24, 48)?);
/// let (without_peer, ()) = http::Request::new(()).into_parts();
/// assert_eq!(per_net.extract(&without_peer), None);
/// # Ok::<(), throttle_tower::client_ip::ClientIpError>(())
/// ```
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

fn extract(client: &ClientIp, prefix: IpPrefix, parts: &Parts) -> Option<Key> {
    let address = client.resolve(peer(parts), &parts.headers).address?;
    let bits = if address.is_ipv4() { prefix.v4() } else { prefix.v6() };
    Some(Key::builder().network(address, bits).finish())
}
