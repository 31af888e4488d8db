use std::net::{IpAddr, Ipv4Addr};

use throttle_core::ConfigError;

use super::error::refused;
use super::ip_net::IpNet;

/// The prefix that a network has chosen for its NAT64, by which its IPv6 addresses stand for IPv4
/// addresses (RFC 6052).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nat64 {
    net: IpNet,
}

/// The lengths that a prefix may have.
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

impl Nat64 {
    pub(super) fn new(net: IpNet) -> Result<Self, ConfigError> {
        if net.network().is_ipv6() && LENGTHS.contains(&net.prefix()) {
            return Ok(Self { net });
        }
        Err(refused(
            "NAT64 prefix",
            net,
            "is not an IPv6 network of 32, 40, 48, 56, 64 or 96 bits",
            "write the prefix that your NAT64 translates to, as in 2001:db8:64::/96; 64:ff9b::/96 \
                is known without it",
        ))
    }

    /// The IPv4 address that a canonical address stands for, or else that address.
    pub(super) fn translated(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V6(v6) if self.net.contains(address) => {
                self.embedded(v6.octets()).map_or(address, IpAddr::V4)
            }
            _ => address,
        }
    }

    /// The four octets after the prefix, but for the ninth octet of the address, which is zero and
    /// belongs to neither. What follows them is zero, too: an address with anything else there is
    /// not one of the translator's.
    fn embedded(&self, octets: [u8; 16]) -> Option<Ipv4Addr> {
        let length = usize::from(self.net.prefix() / 8);
        if length == 12 {
            return octets.last_chunk().map(|v4: &[u8; 4]| Ipv4Addr::from(*v4));
        }
        let (before, after) = (&octets[length..8], &octets[9..]);
        let (mut v4, rest) = ([0; 4], &after[4 - before.len()..]);
        v4[..before.len()].copy_from_slice(before);
        v4[before.len()..].copy_from_slice(&after[..4 - before.len()]);
        (octets[8] == 0 && rest.iter().all(|octet| *octet == 0)).then(|| Ipv4Addr::from(v4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nat64(net: &str) -> Nat64 {
        Nat64::new(net.parse().unwrap()).unwrap()
    }

    /// The examples of RFC 6052, section 2.4.
    #[test]
    fn each_length_of_a_prefix_embeds_as_in_its_specification() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for (net, translated) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            assert_eq!(
                nat64(net).translated(address(translated)),
                address("192.0.2.33"),
                "{net}"
            );
        }
    }

    #[test]
    fn address_that_no_translator_makes_stands_for_itself() {
        for (net, other) in [
            ("2001:db8::/32", "2001:db9:c000:221::"),
            ("2001:db8::/32", "2001:db8:c000:221::1"),
            ("2001:db8::/32", "2001:db8:c000:221:100::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100:1"),
            ("2001:db8:122:344::/96", "2001:db8:122:344:1::192.0.2.33"),
            ("2001:db8::/32", "192.0.2.33"),
        ] {
            let other = other.parse::<IpAddr>().unwrap();
            assert_eq!(nat64(net).translated(other), other, "{net}");
        }
    }

    #[test]
    fn network_that_is_no_prefix_of_a_nat64_is_told_what_to_write() {
        for wrong in [
            "2001:db8::/33",
            "2001:db8::/128",
            "2001:db8::/72",
            "::/0",
            "192.0.2.0/24",
            "64:ff9b::/96",
        ] {
            let error = Nat64::new(wrong.parse().unwrap()).unwrap_err().to_string();
            assert!(
                error.starts_with("NAT64 prefix ") && error.contains("as in 2001:db8:64::/96"),
                "{error}"
            );
        }
    }
}
