//! What one request shows about the configured source: the address of a client, or only that of a
//! proxy.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, header};

use super::address_origin::AddressOrigin;
use super::source::{ClientIp, Format, X_FORWARDED_FOR};

/// What a request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Its address is that of a client, as a proxy has named it.
    Client,
    /// Its address is that of the connection, and nothing looks like a proxy.
    Connection,
    /// Its address is a proxy's, or it looks so.
    Proxy(AddressOrigin),
    /// Neither.
    Nothing,
}

impl ClientIp {
    pub(super) fn evidence(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Evidence {
        let origin = self.resolve(peer, headers).origin;
        match origin {
            AddressOrigin::Forwarded => Evidence::Client,
            // A proxy that the configuration does not know. A client of the Internet may send the
            // header, too, but not from an address that the Internet does not route.
            AddressOrigin::Peer | AddressOrigin::UntrustedPeer
                if peer.is_some_and(is_internal) && self.is_forwarded(headers) =>
            {
                Evidence::Proxy(origin)
            }
            AddressOrigin::Peer => Evidence::Connection,
            AddressOrigin::UntrustedPeer | AddressOrigin::NoPeer => Evidence::Nothing,
            // The header names no client.
            _ => Evidence::Proxy(origin),
        }
    }

    /// The header that is read, as text; `X-Forwarded-For` where none is.
    pub(crate) fn header_name(&self) -> &str {
        let header = self.header.as_ref();
        match header.map(|header| (header.format, &header.name)) {
            Some((Format::Single, name)) => name.as_str(),
            Some((Format::Forwarded, _)) => "Forwarded",
            Some((Format::XForwardedFor, _)) | None => "X-Forwarded-For",
        }
    }

    /// Whether a proxy has written its header, or where none is read, one of the usual ones.
    fn is_forwarded(&self, headers: &HeaderMap) -> bool {
        let has = |name: &HeaderName| headers.contains_key(name);
        match &self.header {
            Some(header) => has(&header.name),
            None => has(&X_FORWARDED_FOR) || has(&header::FORWARDED),
        }
    }
}

/// Whether an address is one of a machine or of an internal network.
fn is_internal(address: IpAddr) -> bool {
    match throttle_core::canonical_ip(address) {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::client_ip::TrustedProxies;

    #[test]
    fn request_shows_a_client_a_proxy_or_nothing() {
        let trusted = || TrustedProxies::new(["10.0.0.1"]).unwrap();
        let (peer, xff) = (ClientIp::peer, || ClientIp::x_forwarded_for(trusted()));
        let two_hops = || ClientIp::x_forwarded_for_hops(2).unwrap();
        let single = || ClientIp::header("x-forwarded-for", trusted()).unwrap();
        let client = Some("203.0.113.9");
        for (source, from, line, expected) in [
            (peer(), "203.0.113.9", client, Evidence::Connection),
            (peer(), "10.0.0.1", None, Evidence::Connection),
            (
                peer(),
                "10.0.0.1",
                client,
                Evidence::Proxy(AddressOrigin::Peer),
            ),
            (peer(), "::1", client, Evidence::Proxy(AddressOrigin::Peer)),
            (xff(), "10.0.0.1", client, Evidence::Client),
            (
                xff(),
                "10.0.0.1",
                None,
                Evidence::Proxy(AddressOrigin::MissingHeader),
            ),
            (
                xff(),
                "10.0.0.1",
                Some("\"203.0.113.7\""),
                Evidence::Proxy(AddressOrigin::Malformed),
            ),
            (
                xff(),
                "10.0.0.1",
                Some("203.0.113.7;"),
                Evidence::Proxy(AddressOrigin::Malformed),
            ),
            (
                xff(),
                "10.0.0.1",
                Some("unknown"),
                Evidence::Proxy(AddressOrigin::Malformed),
            ),
            (
                xff(),
                "10.0.0.1",
                Some("10.0.0.1"),
                Evidence::Proxy(AddressOrigin::AllTrusted),
            ),
            (
                xff(),
                "172.18.0.2",
                client,
                Evidence::Proxy(AddressOrigin::UntrustedPeer),
            ),
            (
                xff(),
                "fd00::2",
                client,
                Evidence::Proxy(AddressOrigin::UntrustedPeer),
            ),
            (xff(), "172.18.0.2", None, Evidence::Nothing),
            (xff(), "203.0.113.9", client, Evidence::Nothing),
            (
                two_hops(),
                "10.0.0.1",
                client,
                Evidence::Proxy(AddressOrigin::TooFewHops),
            ),
            (single(), "10.0.0.1", client, Evidence::Client),
            (
                single(),
                "172.18.0.2",
                client,
                Evidence::Proxy(AddressOrigin::UntrustedPeer),
            ),
        ] {
            let lines = line.map(|line| (X_FORWARDED_FOR.clone(), HeaderValue::from_static(line)));
            let evidence = source.evidence(from.parse().ok(), &lines.into_iter().collect());
            assert_eq!(evidence, expected, "{source:?} from {from} with {line:?}");
        }
    }
}
