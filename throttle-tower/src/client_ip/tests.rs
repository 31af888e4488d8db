//! Helpers of the tests: requests written as lines, addresses written as text.

mod attacks;
mod properties;
mod resolving;
mod settings;
mod syntax;
mod vectors;

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{AddressOrigin, ClientIp, ResolvedAddress, TrustedProxies};

const XFF: &str = "x-forwarded-for";
const FWD: &str = "forwarded";
const PEER: &str = "10.0.0.1";
const STRANGER: &str = "198.51.100.7";
const CLIENT: &str = "203.0.113.9";
const SPOOF: &str = "6.6.6.6";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn ten_slash_eight() -> TrustedProxies {
    TrustedProxies::new(["10.0.0.0/8"]).expect("a usable list")
}

fn xff() -> ClientIp {
    ClientIp::x_forwarded_for(ten_slash_eight())
}

fn fwd() -> ClientIp {
    ClientIp::forwarded(ten_slash_eight())
}

fn headers<N: AsRef<str>, V: AsRef<[u8]>>(lines: impl IntoIterator<Item = (N, V)>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::try_from(name.as_ref()).expect("a header name");
        headers.append(
            name,
            HeaderValue::from_bytes(value.as_ref()).expect("a header value"),
        );
    }
    headers
}

/// What `source` makes of these lines from the trusted peer.
fn behind_proxy(source: &ClientIp, lines: &[(&str, &str)]) -> ResolvedAddress {
    source.resolve(Some(ip(PEER)), &headers(lines.iter().copied()))
}

fn resolved(address: &str, origin: AddressOrigin) -> ResolvedAddress {
    ResolvedAddress {
        address: Some(ip(address)),
        origin,
    }
}
