//! The machines whose word about their client is believed.

use std::net::IpAddr;

use throttle_core::ConfigError;

use super::error::refused;
use super::ip_net::IpNet;

/// The addresses of your own proxies, and of nothing else.
///
/// A machine that connects from one of these addresses can claim any client address. List the
/// proxies one by one, or a subnet that contains only them. Do not list the private ranges as a
/// whole: one compromised machine in them could forge every client address.
/// [`broad_networks`](Self::broad_networks) lists the networks that look broader than a group of
/// proxies.
///
/// ```
/// use throttle_tower::client_ip::TrustedProxies;
///
/// let proxies = TrustedProxies::new(["10.0.0.0/28", "2001:db8::7"])?;
/// assert!(proxies.contains([10, 0, 0, 1].into()));
/// assert!(!proxies.contains([10, 0, 1, 1].into()));
/// assert!(TrustedProxies::new(["0.0.0.0/0"]).is_err());
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies {
    nets: Vec<IpNet>,
}

impl TrustedProxies {
    /// Trusts these networks. Takes text (`"10.0.0.0/28"`, `"2001:db8::7"`), addresses, or
    /// [`IpNet`] values.
    ///
    /// # Errors
    ///
    /// If the list is empty, an element is not a network, or a prefix is shorter than /8 (IPv4) or
    /// /7 (IPv6). An IPv4 /8 is the largest block that was ever assigned to one holder; an IPv6 /7
    /// is all private addresses. So `0.0.0.0/0`, `::/0` and their halves are errors.
    pub fn new<I>(nets: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: TryInto<IpNet>,
        ConfigError: From<<I::Item as TryInto<IpNet>>::Error>,
    {
        let trusted = Self::danger_any_width(nets)?;
        match trusted.any_machine() {
            None => Ok(trusted),
            Some(net) => Err(refused(
                "trusted network",
                net,
                "trusts (nearly) every machine, so any client could name any address",
                "list your proxies' own networks, /8 (IPv4) or /7 (IPv6) at the very widest; if \
                    nothing but your \
                 proxies can reach this process, count hops instead, or opt in with \
                 TrustedProxies::danger_any_width",
            )),
        }
    }

    /// As [`new`](Self::new), without its limit on the width of a network.
    ///
    /// With `0.0.0.0/0` every IPv4 peer can choose the address that its requests are charged to: a
    /// new one each time, or a victim's. Use it only if something else, such as a firewall or
    /// mutual TLS, admits nothing but the proxies. Even then a list header yields
    /// [`AllTrusted`](super::AddressOrigin::AllTrusted) for each client inside the network. This
    /// constructor is meant for [`ClientIp::header`](super::ClientIp::header) behind such a
    /// firewall. `0.0.0.0/0` does not cover IPv6, nor `::/0` IPv4.
    ///
    /// # Errors
    ///
    /// If an element is not a network, or if there is none.
    pub fn danger_any_width<I>(nets: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: TryInto<IpNet>,
        ConfigError: From<<I::Item as TryInto<IpNet>>::Error>,
    {
        let nets = nets
            .into_iter()
            .map(TryInto::try_into)
            .collect::<Result<Vec<_>, _>>()?;
        if nets.is_empty() {
            return Err(refused(
                "trusted networks",
                "",
                "is empty, so that no header would ever be read",
                "list your proxies, or use ClientIp::peer()",
            ));
        }
        Ok(Self { nets })
    }

    /// The network, if there is one, in which (nearly) every machine is.
    pub(super) fn any_machine(&self) -> Option<&IpNet> {
        self.nets.iter().find(|net| shorter(net, 8, 7))
    }

    /// Whether `address` is one of the proxies. An IPv6 address that [stands for an IPv4
    /// address](throttle_core::canonical_ip) counts as that.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(address))
    }

    /// Networks with room for far more than proxies: shorter than /24 for IPv4 or /48 for IPv6. Any
    /// machine in them can name any client, so they deserve a line in the log at start-up.
    ///
    /// ```
    /// use throttle_tower::TrustedProxies;
    ///
    /// let proxies = TrustedProxies::new(["10.0.0.0/8", "192.0.2.1"])?;
    /// assert!(proxies.broad_networks().eq(["10.0.0.0/8".parse()?]));
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn broad_networks(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.nets.iter().filter(|net| shorter(net, 24, 48)).copied()
    }
}

fn shorter(net: &IpNet, v4: u8, v6: u8) -> bool {
    net.prefix() < if net.network().is_ipv4() { v4 } else { v6 }
}
