//! Addresses of IPv6 that stand for one of IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the IPv4 address that an IPv6 address stands for, and every other address as it is.
///
/// Three prefixes are the same everywhere: `::ffff:0:0/96` (an IPv4-mapped address, as sockets for
/// both families show it), `64:ff9b::/96` (NAT64) and `::ffff:0:0:0/96` (SIIT). All IPv4 addresses
/// behind one of them lie in one /64, so without this all clients of a translator would share the
/// budget of one network. The prefix that a network has chosen for its own NAT64 is not known here.
///
/// ```
/// use std::net::IpAddr;
/// use throttle_core::canonical_ip;
///
/// let client = IpAddr::from([192, 0, 2, 1]);
/// for address in ["192.0.2.1", "::ffff:192.0.2.1", "64:ff9b::192.0.2.1", "::ffff:0:192.0.2.1"] {
///     assert_eq!(canonical_ip(address.parse()?), client);
/// }
/// let other: IpAddr = "2001:db8::192.0.2.1".parse()?;
/// assert_eq!(canonical_ip(other), other);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[inline]
#[must_use]
pub fn canonical_ip(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => embedded_ipv4(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The first 96 bits of the addresses that hold an IPv4 address in the last 32.
const MAPPED: u128 = 0xffff;
const SIIT: u128 = 0xffff_0000;
const NAT64: u128 = 0x0064_ff9b << 64;

#[inline]
pub(crate) fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = u128::from(address);
    matches!(bits >> 32, MAPPED | SIIT | NAT64).then(|| Ipv4Addr::from(bits as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_three_prefixes_of_96_bits_hold_an_ipv4_address() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for prefix in ["::ffff:", "::ffff:0:", "64:ff9b::"] {
            for v4 in ["0.0.0.0", "192.0.2.1", "255.255.255.255"] {
                assert_eq!(
                    canonical_ip(address(&format!("{prefix}{v4}"))),
                    address(v4),
                    "{prefix}{v4}"
                );
            }
        }
        for other in [
            "::192.0.2.1",
            "::1",
            "::fffe:192.0.2.1",
            "::1:ffff:192.0.2.1",
            "::ffff:1:192.0.2.1",
            "64:ff9b:1::192.0.2.1",
            "64:ff9b::1:192.0.2.1",
            "64:ff9c::192.0.2.1",
            "2002:c000:201::1",
            "fe80::192.0.2.1",
        ] {
            assert_eq!(canonical_ip(address(other)), address(other));
        }
    }
}
