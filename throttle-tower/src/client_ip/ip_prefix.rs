//! How much of an address a budget belongs to.

use std::net::IpAddr;

use throttle_core::{ConfigError, canonical_ip};

use super::error::refused;

/// How many leading bits of an address identify one client: by default all 32 of IPv4 and 64 of
/// IPv6.
///
/// An IPv6 subscriber has at least a /64 and can use a new one of its 2⁶⁴ addresses for every
/// request, so a key of the whole address limits nothing. Many subscribers have a /56 or a /48 (256
/// or 65 536 times a /64). To limit those, add a second, larger limit on `IpPrefix::new(32, 48)`.
/// Do not widen this one: unrelated subscribers would share a budget.
///
/// Some clients share a /64, and thus a budget, although they are not one subscriber: all that
/// connect by a link-local address (`fe80::/64`), all behind one Teredo server (`2001::/32`), and
/// the hosts of a cloud or a campus that has a /64 for many. IPv6 addresses that [stand for IPv4
/// addresses](canonical_ip) are masked as those; clients behind a NAT64 with a prefix of its own
/// need [`ClientIp::nat64`](super::ClientIp::nat64).
///
/// ```
/// use throttle_tower::client_ip::IpPrefix;
///
/// let prefix = IpPrefix::new(24, 48)?;
/// assert_eq!(prefix.mask([203, 0, 113, 9].into()).to_string(), "203.0.113.0");
/// assert_eq!(prefix.mask("2001:db8:1:2::3".parse().unwrap()).to_string(), "2001:db8:1::");
/// assert!(IpPrefix::new(0, 64).is_err());
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpPrefix {
    v4: u8,
    v6: u8,
}

impl IpPrefix {
    /// Keeps `v4` leading bits of IPv4 addresses and `v6` of IPv6 addresses.
    ///
    /// # Errors
    ///
    /// If `v4` is not 1 to 32 or `v6` not 1 to 128. Zero would be one bucket for all
    /// clients: use [`Constant`](crate::Constant) for that.
    pub fn new(v4: u8, v6: u8) -> Result<Self, ConfigError> {
        if !(1..=32).contains(&v4) {
            return Err(refused(
                "IPv4 prefix",
                v4,
                "is out of range",
                "write 1 to 32 bits; the default is 32",
            ));
        }
        if !(1..=128).contains(&v6) {
            return Err(refused(
                "IPv6 prefix",
                v6,
                "is out of range",
                "write 1 to 128 bits; the default is 64",
            ));
        }
        Ok(Self { v4, v6 })
    }

    /// Leading bits kept of an IPv4 address.
    #[must_use]
    pub fn v4(&self) -> u8 {
        self.v4
    }

    /// Leading bits kept of an IPv6 address.
    #[must_use]
    pub fn v6(&self) -> u8 {
        self.v6
    }

    /// The first address of the block that `address` lies in, after an IPv6 address that [stands
    /// for an IPv4 address](canonical_ip) is taken as that.
    #[must_use]
    pub fn mask(&self, address: IpAddr) -> IpAddr {
        // Canonical first: all IPv6 addresses that stand for IPv4 addresses lie in a few /64s, so
        // an IPv6 mask over them would put all of IPv4 into a single bucket.
        let address = canonical_ip(address);
        ipnet::IpNet::new_assert(address, self.bits(address))
            .trunc()
            .addr()
    }

    /// How many leading bits of a canonical address are kept.
    pub(crate) fn bits(&self, address: IpAddr) -> u8 {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }
}

impl Default for IpPrefix {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}
