use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;
use super::peer::peer;
use crate::client_ip::{ClientIp, IpPrefix};

/// By IPv4 address, or IPv6 network of 64 bits, unless [`by_prefix`](ClientIp::by_prefix) sets other
/// sizes: a client owns at least that much of the IPv6 space.
impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let address = self.resolve(peer(parts), &parts.headers).address?;
        let bits = self.prefix.bits(address);
        Some(Key::builder().network(address, bits).finish())
    }

    fn client_ip(&self) -> Option<&ClientIp> {
        Some(self)
    }

    /// Where a header is read whatever the peer is: entries are counted from its end, or every
    /// machine is trusted.
    fn is_spoofable(&self) -> bool {
        self.is_any_peers()
    }

    fn describe(&self) -> String {
        "ClientIp".to_owned()
    }
}

impl ClientIp {
    /// Keys by networks of the size that `prefix` sets. The default is 32 bits of IPv4 and 64 of
    /// IPv6.
    ///
    /// As a second limit beside the default, it stops a client that rotates through the /64s of its
    /// /48:
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
    ///     per_net.extract(
    ///         &http::Request::builder()
    ///             .extension(peer)
    ///             .body(())
    ///             .unwrap()
    ///             .into_parts()
    ///             .0,
    ///     )
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
    pub fn by_prefix(mut self, prefix: IpPrefix) -> Self {
        self.prefix = prefix;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Request;

    use super::*;
    use crate::client_ip::TrustedProxies;
    use crate::extract::PeerAddr;

    fn key(by: &impl KeyExtractor, forwarded_for: Option<&str>) -> Option<Key> {
        let request = Request::builder().extension(PeerAddr(IpAddr::from([10, 0, 0, 1])));
        let lines = forwarded_for.into_iter();
        let request = lines.fold(request, |request, line| {
            request.header("x-forwarded-for", line)
        });
        by.extract(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn client_whose_address_is_unknown_spends_the_budget_of_the_hop_before_it() {
        let client = ClientIp::x_forwarded_for(TrustedProxies::new(["10.0.0.0/8"]).unwrap());
        let of = |address: [u8; 4]| Some(Key::from(IpAddr::from(address)));
        assert_eq!(key(&client, Some("203.0.113.9")), of([203, 0, 113, 9]));
        for lines in [
            None,
            Some(""),
            Some("unknown"),
            Some("garbage"),
            Some("10.0.0.2"),
        ] {
            assert_eq!(key(&client, lines), of([10, 0, 0, 1]), "{lines:?}");
        }
        assert_eq!(key(&client, Some("garbage, 10.0.0.2")), of([10, 0, 0, 2]));
    }

    #[test]
    fn each_family_is_masked_by_its_own_prefix() {
        let client = || ClientIp::x_forwarded_for(TrustedProxies::new(["10.0.0.0/8"]).unwrap());
        let same = |by: &dyn Fn(&str) -> Option<Key>, one: &str, other: &str| by(one) == by(other);
        let masked = client().by_prefix(IpPrefix::new(24, 48).unwrap());
        let (plain, masked) = (
            |line: &str| key(&client(), Some(line)),
            |line: &str| key(&masked, Some(line)),
        );
        for (one, other, by_plain, by_masked) in [
            ("203.0.113.9", "203.0.113.10", false, true),
            ("203.0.113.9", "203.0.112.9", false, false),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::1", true, true),
            ("2001:db8:1:2::1", "2001:db8:1:3::1", false, true),
            ("2001:db8:1:2::1", "2001:db8:2:2::1", false, false),
            ("::ffff:203.0.113.9", "203.0.113.9", true, true),
        ] {
            assert_eq!(same(&plain, one, other), by_plain, "{one} and {other}");
            assert_eq!(
                same(&masked, one, other),
                by_masked,
                "{one} and {other}, masked"
            );
        }
    }
}
