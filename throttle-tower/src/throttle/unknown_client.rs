//! What the warning says of a limit that finds no client, only proxies: why, and what to write.

use std::fmt;

use throttle_core::PolicyName;

use crate::client_ip::AddressOrigin;
use crate::client_ip::first_requests::REQUESTS;

pub(super) fn fmt(
    f: &mut fmt::Formatter<'_>,
    policy: &PolicyName,
    origin: AddressOrigin,
    header: &str,
) -> fmt::Result {
    let cause = Cause { origin, header };
    write!(
        f,
        "the limit {:?} is by the client's address, and found none in {REQUESTS} requests: \
            {cause}. All clients of a \
         proxy share the proxy's budget. {}",
        policy.as_str(),
        Remedy { origin, header }
    )
}

struct Cause<'a> {
    origin: AddressOrigin,
    header: &'a str,
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = self.header;
        match self.origin {
            AddressOrigin::Peer => write!(
                f,
                "they came from internal addresses and had {header} or Forwarded"
            ),
            AddressOrigin::UntrustedPeer => {
                write!(
                    f,
                    "they had the header {header}, and came from internal addresses that are not \
                        trusted"
                )
            }
            AddressOrigin::Malformed => {
                write!(
                    f,
                    "the header {header} has no address where the client's is expected"
                )
            }
            AddressOrigin::Obfuscated => write!(
                f,
                "the header {header} hides the client, as unknown or _name"
            ),
            AddressOrigin::AllTrusted => {
                write!(f, "the header {header} names only trusted proxies")
            }
            AddressOrigin::TooFewHops => write!(
                f,
                "the header {header} has fewer entries than hops are configured"
            ),
            AddressOrigin::TooManyHops => write!(f, "the header {header} has too many entries"),
            AddressOrigin::Repeated => write!(f, "the header {header} occurs more than once"),
            _ => write!(f, "they did not have the header {header}"),
        }
    }
}

struct Remedy<'a> {
    origin: AddressOrigin,
    header: &'a str,
}

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            AddressOrigin::Peer => f.write_str(
                "Behind a proxy, name it: \
                    ClientIp::x_forwarded_for(TrustedProxies::new([\"10.0.0.1\"])?), or in a \
                 rule file source = \"x-forwarded-for\" and trusted = [\"10.0.0.1\"]",
            ),
            AddressOrigin::UntrustedPeer => {
                f.write_str("Add the address from which the proxy connects to the trusted proxies")
            }
            AddressOrigin::AllTrusted => {
                f.write_str("Trust the addresses of the proxies alone, not the network around")
            }
            AddressOrigin::TooFewHops => f.write_str(
                "Set hops to the number of proxies that append to it, or trust them \
                    by their addresses",
            ),
            AddressOrigin::Obfuscated => f.write_str(
                "Let the proxy write the address that it is \
                called from",
            ),
            AddressOrigin::TooManyHops => f.write_str(
                "Let the outermost proxy replace what the \
                client sent",
            ),
            AddressOrigin::Malformed => {
                let form = if self.header == "Forwarded" {
                    "for=203.0.113.7"
                } else {
                    "203.0.113.7"
                };
                write!(
                    f,
                    "Let the proxy write it as in {form}, without anything around it. "
                )?;
                self.in_nginx(f)
            }
            _ => {
                f.write_str("Let the proxy write it. ")?;
                self.in_nginx(f)
            }
        }
    }
}

impl Remedy<'_> {
    fn in_nginx(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const APPENDED: &str = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;";
        match self.header {
            "X-Forwarded-For" => write!(f, "In nginx: {APPENDED}"),
            "Forwarded" => write!(
                f,
                "nginx has no variable for it: use X-Forwarded-For there, with {APPENDED}"
            ),
            other => write!(f, "In nginx: proxy_set_header {other} $remote_addr;"),
        }
    }
}
