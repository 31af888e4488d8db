use std::borrow::Cow;

use http::header;
use http::request::Parts;
use throttle_core::Key;

use super::host_name::{MAX_LENGTH, has_letters_of_a_host, ipv6, normalized, without_port};
use super::key_extractor::KeyExtractor;

/// The host that the request names: in lower case, without its port and a final dot.
///
/// HTTP/2 has the host as the authority of the request, and HTTP/1.1 in the header `Host`, unless
/// the request line has an absolute URI. Both are read. The key is missing if there is no host, if
/// it is no host name and no address, if there are several `Host` headers, and if a `Host` header
/// names another host than the authority, because the service may read the other one.
///
/// A client can send any host. If each tenant has a host, accept those that exist, as this one does
/// with the hosts below a domain:
///
/// ```
/// use http::request::Parts;
/// use throttle_tower::extract::{Host, from_fn};
/// use throttle_tower::{Key, KeyExtractor};
///
/// # fn is_tenant(name: &str) -> bool { name == "acme" }
/// let tenant = from_fn(|parts: &Parts| {
///     let host = Host::name(parts)?;
///     let tenant = host.strip_suffix(".example.com")?;
///     is_tenant(tenant).then(|| tenant.to_owned())
/// });
///
/// let key = |request: http::request::Builder| {
///     tenant.extract(&request.body(()).unwrap().into_parts().0)
/// };
/// let http1 = http::Request::get("/").header("host", "ACME.example.com:8443");
/// let http2 = http::Request::get("https://acme.example.com/");
/// assert_eq!((key(http1), key(http2)), (Some(Key::from("acme")), Some(Key::from("acme"))));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Host {
    /// Returns the host that the request names, as [`Host`] finds it; `None` if the key is missing.
    #[must_use]
    pub fn name(parts: &Parts) -> Option<Cow<'_, str>> {
        let mut headers = parts.headers.get_all(header::HOST).iter();
        let header = match headers.next() {
            Some(host) => Some(of_header(host.as_bytes())?),
            None => None,
        };
        if headers.next().is_some() {
            return None;
        }
        let authority = match parts.uri.host() {
            Some(host) => Some(checked(host.as_bytes())?),
            None => None,
        };
        match (authority, header) {
            (Some(authority), Some(header)) => (authority == header).then_some(authority),
            (authority, header) => authority.or(header),
        }
    }
}

fn of_header(value: &[u8]) -> Option<Cow<'_, str>> {
    let host = without_port(value);
    let port = value.trim_ascii().get(host.len()..).unwrap_or_default();
    let is_port = |port: &[u8]| port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit);
    if port.is_empty() || is_port(port) {
        checked(host)
    } else {
        None
    }
}

/// The host in one spelling; `None` if it is none.
fn checked(host: &[u8]) -> Option<Cow<'_, str>> {
    let is_address = ipv6(host).is_some();
    let name = match normalized(host) {
        Cow::Borrowed(name) => Cow::Borrowed(std::str::from_utf8(name).ok()?),
        Cow::Owned(name) => Cow::Owned(String::from_utf8(name).ok()?),
    };
    let is_name = || {
        name.len() <= MAX_LENGTH
            && has_letters_of_a_host(&name)
            && !name.split('.').any(str::is_empty)
    };
    (is_address || is_name()).then_some(name)
}

impl KeyExtractor for Host {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        Self::name(parts).map(|name| Key::from(&*name))
    }

    fn is_spoofable(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "Host".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    fn name(uri: &str, hosts: &[&[u8]]) -> Option<String> {
        let request = hosts.iter().fold(Request::get(uri), |request, host| {
            request.header("host", HeaderValue::from_bytes(host).unwrap())
        });
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Host::name(&parts).map(Cow::into_owned)
    }

    #[test]
    fn host_is_that_of_the_authority_or_of_the_header_in_one_spelling() {
        let acme = Some("acme.example.com".to_owned());
        for (uri, hosts) in [
            ("/", &["acme.example.com"][..]),
            ("/", &["ACME.Example.com:8443"]),
            ("/", &["acme.example.com.:443"]),
            ("/", &[" acme.example.com:"]),
            ("https://acme.example.com/", &[]),
            ("https://user@Acme.example.com:8443/", &[]),
            ("https://acme.example.com/", &["ACME.example.com:443"]),
        ] {
            let hosts: Vec<_> = hosts.iter().map(|host| host.as_bytes()).collect();
            assert_eq!(name(uri, &hosts), acme, "{uri} {hosts:?}");
        }
        for (host, expected) in [
            ("[0:0::1]:80", "[::1]"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("localhost", "localhost"),
            ("a_b.test", "a_b.test"),
        ] {
            let found = name("/", &[host.as_bytes()]);
            assert_eq!(found.as_deref(), Some(expected), "{host}");
        }
    }

    #[test]
    fn host_that_is_absent_or_invalid_or_ambiguous_is_missing() {
        let long = "a.".repeat(128);
        for hosts in [
            &[][..],
            &[""],
            &["."],
            &[":80"],
            &["a..b"],
            &[".a"],
            &["a b"],
            &["u@a"],
            &["a:80@b"],
            &["a:http"],
            &["a/b"],
            &["größe.de"],
            &["[::1"],
            &["[::1]x"],
            &["[abc]"],
            &["::1"],
            &["a", "a"],
            &[&*long],
        ] {
            let hosts: Vec<_> = hosts.iter().map(|host| host.as_bytes()).collect();
            assert_eq!(name("/", &hosts), None, "{hosts:?}");
        }
        assert_eq!(name("/", &[b"caf\xe9.test"]), None);
        for other in ["b", "a@b", ""] {
            assert_eq!(name("http://a/", &[other.as_bytes()]), None, "{other}");
        }
    }
}
