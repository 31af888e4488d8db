//! The host that a request names.

use std::collections::HashSet;
use std::net::Ipv6Addr;

use http::header::HOST;
use http::request::Parts;

use super::host_name::{MAX_LENGTH, ipv6, normalized, without_port};

/// Hosts by name, and domains with all hosts below them.
#[derive(Default)]
pub(super) struct Hosts {
    names: HashSet<Box<[u8]>>,
    /// Without `*.`
    domains: HashSet<Box<[u8]>>,
    /// The length of the longest of the domains.
    longest_domain: usize,
}

impl Hosts {
    /// Adds `api.example.com`, or `*.example.com` for all hosts below it.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub(super) fn add(&mut self, text: &str) -> Result<(), String> {
        match text.strip_prefix("*.") {
            Some(domain) if !domain.starts_with('[') => {
                let domain = parse(domain)?;
                self.longest_domain = self.longest_domain.max(domain.len());
                self.domains.insert(domain);
            }
            _ => {
                self.names.insert(parse(text)?);
            }
        }
        Ok(())
    }

    /// Whether the request names one of the hosts: in its URI, or in any `Host`. A request that
    /// names two hosts must not escape by that.
    pub(super) fn contain_host_of(&self, parts: &Parts) -> bool {
        let of_uri = parts.uri.host().map(str::as_bytes);
        let of_headers = parts
            .headers
            .get_all(HOST)
            .iter()
            .flat_map(|host| readings(host.as_bytes()));
        of_uri
            .into_iter()
            .chain(of_headers)
            .any(|host| self.contain(host))
    }

    fn contain(&self, host: &[u8]) -> bool {
        let host = normalized(host);
        self.names.contains(&*host) || self.rests(&host).any(|rest| self.domains.contains(rest))
    }

    /// What follows each dot of the host, unless it is longer than every domain. The work thus
    /// depends on the domains, and not on how long a host the client sends.
    fn rests<'h>(&self, host: &'h [u8]) -> impl Iterator<Item = &'h [u8]> + use<'h> {
        // The dot of ".example.com" has no host before it.
        let first = host.len().saturating_sub(self.longest_domain + 1).max(1);
        (first..host.len())
            .filter(|dot| host[*dot] == b'.')
            .map(|dot| &host[dot + 1..])
    }
}

/// # Errors
///
/// What to write instead.
fn parse(name: &str) -> Result<Box<[u8]>, String> {
    const EXAMPLE: &str = "it must be a host, as in \"api.example.com\" (other alphabets as xn--…)";
    if name.contains('/') {
        return Err(
            "it must be a host alone, without a scheme and a path, as in \"api.example.com\""
                .to_owned(),
        );
    }
    if name.parse::<Ipv6Addr>().is_ok() {
        return Err(format!(
            "an IPv6 address stands in brackets; write \"[{name}]\""
        ));
    }
    if name.contains('*') {
        return Err("a * stands for all before a domain, as in \"*.example.com\"".to_owned());
    }
    if name.contains(['[', ']']) && !name.contains("]:") {
        let address = ipv6(name.as_bytes())
            .ok_or("brackets hold an IPv6 address, as in \"[2001:db8::1]\"")?;
        return Ok(address.into_bytes().into());
    }
    if name.contains(':') {
        return Err("it must be a host without a port; a limit applies to all ports".to_owned());
    }
    if let Some(domain) = name.strip_prefix('.').filter(|domain| !domain.is_empty()) {
        return Err(format!(
            "it must not start with a dot; for all hosts below a domain write \"*.{domain}\""
        ));
    }
    let labels = name.strip_suffix('.').unwrap_or(name);
    let is_of_a_host = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if labels.is_empty() || !labels.bytes().all(is_of_a_host) {
        return Err(EXAMPLE.to_owned());
    }
    if labels.split('.').any(str::is_empty) {
        return Err("it has two dots with nothing between them, and no host has".to_owned());
    }
    if labels.len() > MAX_LENGTH {
        return Err(format!("no host has more than {MAX_LENGTH} characters"));
    }
    Ok(normalized(name.as_bytes()).into())
}

/// The hosts that servers find in a `Host`: it has no user information, but those that accept one
/// take what follows the `@`.
fn readings(host: &[u8]) -> impl Iterator<Item = &[u8]> {
    let after_user = host
        .rsplit(|b| *b == b'@')
        .next()
        .filter(|rest| rest.len() < host.len());
    [Some(host), after_user]
        .into_iter()
        .flatten()
        .map(without_port)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn hosts(names: &[&str]) -> Hosts {
        let mut hosts = Hosts::default();
        names.iter().for_each(|name| hosts.add(name).unwrap());
        hosts
    }

    fn with_host(host: &str) -> Parts {
        Request::builder()
            .header("host", host)
            .body(())
            .unwrap()
            .into_parts()
            .0
    }

    #[test]
    fn host_is_compared_without_case_port_and_final_dot() {
        let hosts = hosts(&["api.Example.com", "[::1]"]);
        for host in [
            "api.example.com",
            "API.example.com:8080",
            "api.example.com.",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(hosts.contain_host_of(&with_host(host)), "{host}");
        }
        for host in [
            "example.com",
            "api.example.com.evil",
            "xapi.example.com",
            "",
            "[::2]",
            "[",
            "]",
            "[::1",
            "@",
        ] {
            assert!(!hosts.contain_host_of(&with_host(host)), "{host}");
        }
    }

    #[test]
    fn spelling_is_no_way_around_a_host() {
        let hosts = hosts(&["api.example.com", "[::1]", "*.test"]);
        for host in [
            "u@api.example.com",
            "u:p@api.example.com:80",
            "u@other@api.example.com",
            "api.example.com:80@other",
            "api.example.com:",
            "api.example.com:http",
            "[0:0:0:0:0:0:0:1]",
            "[::0001]:80",
            "a.test:80",
        ] {
            assert!(hosts.contain_host_of(&with_host(host)), "{host}");
        }
        let latin_1 = http::HeaderValue::from_bytes(b"caf\xe9.test").unwrap();
        let (parts, ()) = Request::builder()
            .header("host", latin_1)
            .body(())
            .unwrap()
            .into_parts();
        assert!(hosts.contain_host_of(&parts), "bytes that are no text");
    }

    #[test]
    fn long_host_costs_no_more_than_its_length() {
        let hosts = hosts(&["*.example.com", "*.a.example.org"]);
        let long = ".a".repeat(1 << 20);
        let looked_up: usize = hosts.rests(long.as_bytes()).map(<[u8]>::len).sum();
        assert!(looked_up < 100, "{looked_up}");
        let start = std::time::Instant::now();
        assert!(!hosts.contain_host_of(&with_host(&long)));
        assert!(
            hosts.contain_host_of(&with_host(&format!("{long}.example.com"))),
            "a long host is no way around"
        );
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }

    #[test]
    fn host_of_the_uri_counts_beside_the_header() {
        let hosts = hosts(&["api.example.com"]);
        let request = |uri: &str, headers: &[&str]| {
            let request = headers
                .iter()
                .fold(Request::builder().uri(uri), |request, host| {
                    request.header("host", *host)
                });
            request.body(()).unwrap().into_parts().0
        };
        assert!(hosts.contain_host_of(&request("https://api.example.com/", &[])));
        assert!(hosts.contain_host_of(&request("https://api.example.com/", &["other"])));
        assert!(hosts.contain_host_of(&request("/", &["other", "api.example.com"])));
        assert!(!hosts.contain_host_of(&request("/", &[])));
    }

    #[test]
    fn wildcard_stands_for_the_hosts_below_a_domain() {
        let hosts = hosts(&["*.example.com"]);
        for (host, expected) in [
            ("a.example.com", true),
            ("a.b.example.com", true),
            ("example.com", false),
            (".example.com", false),
            ("aexample.com", false),
        ] {
            assert_eq!(hosts.contain(host.as_bytes()), expected, "{host}");
        }
    }

    #[test]
    fn wrong_host_is_told_what_to_write() {
        for (host, remedy) in [
            ("https://example.com", "without a scheme"),
            ("example.com/api", "a path"),
            ("example.com:80", "without a port"),
            ("api.*.com", "before a domain"),
            ("", "as in"),
            ("größe.de", "xn--"),
            ("a b", "as in"),
            (".", "as in"),
            (".example.com", "write \"*.example.com\""),
            ("a..b", "nothing between"),
            ("a..", "nothing between"),
            ("*..a", "dot"),
            ("[abc]", "an IPv6 address"),
            ("[::1", "an IPv6 address"),
            ("[::1]:80", "without a port"),
            ("a[b]", "an IPv6 address"),
            ("::1", "write \"[::1]\""),
            ("*.[::1]", "before a domain"),
            (&"a.".repeat(200), "253"),
        ] {
            let error = Hosts::default().add(host).unwrap_err();
            assert!(error.contains(remedy), "{host}: {error}");
        }
    }

    /// Whatever the order of the domains, and however the longest one is spelled.
    #[test]
    fn longest_domain_is_found_beside_shorter_ones() {
        for names in [
            ["*.a.example.org", "*.b"],
            ["*.b", "*.a.example.org"],
            ["*.A.Example.org.", "*.b"],
        ] {
            let hosts = hosts(&names);
            for (host, expected) in [
                ("x.a.example.org", true),
                ("x.b", true),
                ("x.y.b", true),
                ("x.example.org", false),
                ("b", false),
            ] {
                assert_eq!(
                    hosts.contain(host.as_bytes()),
                    expected,
                    "{host} of {names:?}"
                );
            }
        }
    }

    #[test]
    fn host_is_written_in_any_spelling() {
        let hosts = hosts(&[
            "api.example.com.",
            "[0:0:0:0:0:0:0:1]",
            "a-b_c.TEST",
            "192.0.2.1",
        ]);
        for host in [
            "api.example.com",
            " api.example.com ",
            "api.example.com..",
            "[::1]",
            "a-b_c.test",
            "192.0.2.1:80",
        ] {
            assert!(hosts.contain_host_of(&with_host(host)), "{host}");
        }
        assert!(!hosts.contain_host_of(&with_host("192.0.2.10")));
    }

    #[test]
    fn host_has_at_most_253_characters() {
        let name = |length: usize| "a.".repeat(200)[..length - 1].to_owned() + "b";
        for longest in [name(253), name(253) + ".", format!("*.{}", name(253))] {
            assert_eq!(Hosts::default().add(&longest), Ok(()), "{}", longest.len());
        }
        for host in [name(254), format!("*.{}", name(254))] {
            assert_eq!(
                Hosts::default().add(&host).unwrap_err(),
                "no host has more than 253 characters"
            );
        }
    }
}
