//! The client's address, behind proxies too: the key of most limits by address.
//!
//! Only the connection's own address (the *peer*) cannot be forged. In a header such as
//! `X-Forwarded-For`, your own proxies wrote the rightmost entries, and the client may have written
//! all others. This module finds the leftmost entry that one of your proxies wrote: the client. It
//! reads one source, which you choose:
//!
//! | source | use it when |
//! |---|---|
//! | [`ClientIp::peer`] | clients connect to this process directly |
//! | [`ClientIp::x_forwarded_for`], [`ClientIp::forwarded`] | you can list the addresses of your proxies |
//! | [`ClientIp::x_forwarded_for_hops`], [`ClientIp::forwarded_hops`] | you can only say how many proxies there are |
//! | [`ClientIp::header`] | a CDN writes the client into a header of its own |
//!
//! There is no default header, and no fallback from one header to another: a client can send any
//! header that your proxy does not overwrite. Only the chosen header is read.
//!
//! ```
//! use std::net::IpAddr;
//! use http::{HeaderMap, HeaderValue};
//! use throttle_tower::client_ip::{ClientIp, IpPrefix, AddressOrigin, TrustedProxies};
//!
//! # fn main() -> Result<(), throttle_tower::ConfigError> {
//! let client_ip = ClientIp::x_forwarded_for(TrustedProxies::new(["10.0.0.0/28"])?);
//!
//! // The client invented 192.0.2.66; the proxy at 10.0.0.1 then appended what it saw.
//! let mut headers = HeaderMap::new();
//! headers.insert("x-forwarded-for", HeaderValue::from_static("192.0.2.66, 203.0.113.9"));
//!
//! let resolved = client_ip.resolve(Some(IpAddr::from([10, 0, 0, 1])), &headers);
//! assert_eq!(resolved.origin, AddressOrigin::Forwarded);
//! assert_eq!(resolved.address, Some(IpAddr::from([203, 0, 113, 9])));
//!
//! // An IPv6 client owns a whole /64, so that is what a budget belongs to.
//! let budget = resolved.address.map(|address| IpPrefix::default().mask(address));
//! assert_eq!(budget, Some(IpAddr::from([203, 0, 113, 9])));
//! # Ok(())
//! # }
//! ```
//!
//! # Which setting for which proxy
//!
//! | in front of this process | setting |
//! |---|---|
//! | nothing, or a TCP load balancer that keeps the source address | `ClientIp::peer()` |
//! | nginx with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for` | `x_forwarded_for`, trusting nginx's address. On a Unix socket there is no peer: `x_forwarded_for_hops(1)` |
//! | AWS Application Load Balancer | `x_forwarded_for`, trusting the balancer's own subnets rather than the whole VPC |
//! | Google Cloud Application Load Balancer | [`ClientIp::google_cloud_load_balancer`]: it appends the client, then itself |
//! | Fly.io | [`ClientIp::fly_io`]: the rightmost entry is the app's own address, so plain "rightmost" puts all clients in one bucket |
//! | Cloudflare | `header("cf-connecting-ip", …)`, trusting Cloudflare's published ranges; see [`ClientIp::header`] |
//! | Cloudflare or CloudFront, then a load balancer | `x_forwarded_for`, trusting both; or `x_forwarded_for_hops(2)` |
//! | any balancer speaking the PROXY protocol | `ClientIp::peer()`: the listener takes the client's address from the PROXY header, and must accept that header from the balancer only |
//!
//! # When the header does not name a client
//!
//! The client's address is then unknown, and a proxy's address is used instead. In most cases that
//! is the peer. It can also be a trusted proxy nearer to the client, if the header names one. A
//! client that sends a malformed header shares that proxy's budget; it never gets a fresh one, nor
//! another client's. [`AddressOrigin`] states the reason, and which address is used. If more than a
//! few outcomes are not [`Peer`](AddressOrigin::Peer), [`Forwarded`](AddressOrigin::Forwarded) or
//! [`UntrustedPeer`](AddressOrigin::UntrustedPeer), the configuration does not match the proxies.
//! If that holds for the first hundred requests of a limit, its layer
//! [warns](crate::Warning::ClientUnknown).
//!
//! # Addresses that stand for others
//!
//! An IPv6 address that holds an IPv4 address by a prefix of the whole Internet is that IPv4
//! address: as a key, and where it is compared with the trusted proxies
//! ([`canonical_ip`](throttle_core::canonical_ip) lists the prefixes). A network whose NAT64 has a
//! prefix of its own names it: [`ClientIp::nat64`]. [`IpPrefix`] says which other clients share a
//! key.
//!
//! # Standards
//!
//! `Forwarded` is RFC 7239. Joining several lines of one header into a list, in order, and skipping
//! empty elements follows RFC 9110 (sections 5.3 and 5.6.1). `X-Forwarded-For` has no standard; it
//! is read as nginx, Envoy and the cloud load balancers write it.

mod address_origin;
mod address_text;
mod error;
mod evidence;
pub(crate) mod first_requests;
mod forwarded;
mod ip_net;
mod ip_prefix;
mod nat64;
mod resolve;
mod source;
#[cfg(test)]
mod tests;
mod trusted_proxies;
mod x_forwarded_for;

pub use self::address_origin::{AddressOrigin, ResolvedAddress};
pub use self::ip_net::IpNet;
pub use self::ip_prefix::IpPrefix;
pub use self::source::{ClientIp, MAX_HOPS};
pub use self::trusted_proxies::TrustedProxies;
