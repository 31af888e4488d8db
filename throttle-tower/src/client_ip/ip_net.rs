//! A block of addresses in CIDR notation.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use throttle_core::{ConfigError, canonical_ip};

use super::error::refused;

/// A network in CIDR notation: `10.0.0.0/8`, `2001:db8::/32`, or one bare address.
///
/// Equal blocks are equal values: host bits are dropped (`10.1.2.3/8` is `10.0.0.0/8`), and a block
/// of IPv6 addresses that [stand for IPv4 addresses](canonical_ip) is that IPv4 block
/// (`::ffff:10.0.0.0/104` and `64:ff9b::10.0.0.0/104` are `10.0.0.0/8`).
///
/// ```
/// use throttle_tower::client_ip::IpNet;
///
/// let net: IpNet = "10.1.2.3/8".parse()?;
/// assert_eq!(net.to_string(), "10.0.0.0/8");
/// assert!(net.contains("::ffff:10.9.9.9".parse().unwrap()));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpNet(ipnet::IpNet);

/// Bits before an IPv4 address in the IPv6 address that stands for it.
const BEFORE_IPV4: u8 = 96;

impl IpNet {
    /// The block of `prefix` leading bits around `address`.
    ///
    /// # Errors
    ///
    /// If `prefix` is over 32 for IPv4 or 128 for IPv6, or under 96 for an IPv6 address that stands
    /// for an IPv4 address: such a block would hold IPv6 addresses only, although it is written
    /// like an IPv4 one.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, ConfigError> {
        let refuse = |problem, remedy| {
            refused(
                "network",
                format_args!("{address}/{prefix}"),
                problem,
                remedy,
            )
        };
        let net = match (address, canonical_ip(address)) {
            (IpAddr::V6(_), IpAddr::V4(_)) if prefix < BEFORE_IPV4 => {
                let problem = "stands for an IPv4 address and has a prefix under 96";
                return Err(refuse(
                    problem,
                    "write the IPv4 network itself, such as 10.0.0.0/8",
                ));
            }
            (IpAddr::V6(_), v4 @ IpAddr::V4(_)) => ipnet::IpNet::new(v4, prefix - BEFORE_IPV4),
            (_, address) => ipnet::IpNet::new(address, prefix),
        };
        let remedy = match address {
            IpAddr::V4(_) => "write 0 to 32 after the slash for IPv4",
            IpAddr::V6(_) => "write 0 to 128 after the slash for IPv6",
        };
        net.map(|net| Self(net.trunc()))
            .map_err(|_| refuse("has too long a prefix", remedy))
    }

    /// The first address of the block.
    #[must_use]
    pub fn network(&self) -> IpAddr {
        self.0.addr()
    }

    /// How many leading bits the addresses of the block share: 0 to 32 for IPv4, 0 to 128 for IPv6.
    #[must_use]
    pub fn prefix(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Whether `address` lies in the block. An IPv6 address that [stands for an IPv4
    /// address](canonical_ip) counts as that; apart from it the families are separate, so `::/0`
    /// holds no IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&canonical_ip(address))
    }
}

impl FromStr for IpNet {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refuse = || {
            refused(
                "network",
                text,
                "is not an address or a CIDR network",
                "write 10.0.0.0/28, 2001:db8::/64 or one address, without leading zeros, spaces \
                    or a zone",
            )
        };
        let Some((address, prefix)) = text.split_once('/') else {
            return text.parse::<IpAddr>().map(Self::from).map_err(|_| refuse());
        };
        let address = address.parse().map_err(|_| refuse())?;
        // `parse` alone would take "+8" and "08".
        let plain = prefix.bytes().all(|b| b.is_ascii_digit())
            && (prefix == "0" || !prefix.starts_with('0'));
        let prefix = prefix.parse().ok().filter(|_| plain).ok_or_else(refuse)?;
        Self::new(address, prefix)
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One address is the block that holds nothing else.
impl From<IpAddr> for IpNet {
    fn from(address: IpAddr) -> Self {
        Self(canonical_ip(address).into())
    }
}

impl TryFrom<&str> for IpNet {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        text.parse()
    }
}

impl TryFrom<String> for IpNet {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}
