//! The host that a request names.

use std::collections::HashSet;

use http::header::HOST;
use http::request::Parts;

/// Hosts by name, and domains with all hosts below them.
#[derive(Default)]
pub(super) struct Hosts {
    names: HashSet<Box<str>>,
    /// Without `*.`
    domains: HashSet<Box<str>>,
}

impl Hosts {
    /// Adds `api.example.com`, or `*.example.com` for all hosts below it.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub(super) fn add(&mut self, text: &str) -> Result<(), String> {
        let (hosts, name) = match text.strip_prefix("*.") {
            Some(domain) => (&mut self.domains, domain),
            None => (&mut self.names, text),
        };
        let is_ipv6 = name.starts_with('[') && name.ends_with(']');
        if name.contains("//") || name.contains('/') {
            return Err("it must be a host alone, without a scheme and a path, as in \"api.example.com\"".to_owned());
        }
        if name.contains(':') && !is_ipv6 {
            return Err("it must be a host without a port; a limit applies to all ports".to_owned());
        }
        if name.contains('*') {
            return Err("a * stands for all before a domain, as in \"*.example.com\"".to_owned());
        }
        let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
        if name.trim_end_matches('.').is_empty() || !is_plain {
            return Err("it must be a host, as in \"api.example.com\" (other alphabets as xn--…)".to_owned());
        }
        hosts.insert(normalized(name).into());
        Ok(())
    }

    /// Whether the request names one of the hosts: in its URI, or in any `Host`. A request that names two hosts must
    /// not escape by that.
    pub(super) fn contain_host_of(&self, parts: &Parts) -> bool {
        let headers = parts.headers.get_all(HOST).iter().filter_map(|host| host.to_str().ok());
        parts.uri.host().into_iter().chain(headers.map(without_port)).any(|host| self.contain(host))
    }

    fn contain(&self, host: &str) -> bool {
        let host = normalized(host);
        let below = |domains: &HashSet<Box<str>>| {
            host.match_indices('.').any(|(dot, _)| dot > 0 && domains.contains(&host[dot + 1..]))
        };
        self.names.contains(&*host) || (!self.domains.is_empty() && below(&self.domains))
    }
}

fn normalized(host: &str) -> std::borrow::Cow<'_, str> {
    let host = host.trim().trim_end_matches('.');
    if host.bytes().any(|b| b.is_ascii_uppercase()) { host.to_ascii_lowercase().into() } else { host.into() }
}

/// `[::1]:80` is `[::1]`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
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

    #[test]
    fn host_is_compared_without_case_port_and_final_dot() {
        let hosts = hosts(&["api.Example.com", "[::1]"]);
        for host in ["api.example.com", "API.example.com:8080", "api.example.com.", "[::1]", "[::1]:80"] {
            let (parts, ()) = Request::builder().header("host", host).body(()).unwrap().into_parts();
            assert!(hosts.contain_host_of(&parts), "{host}");
        }
        for host in ["example.com", "api.example.com.evil", "xapi.example.com", ""] {
            let (parts, ()) = Request::builder().header("host", host).body(()).unwrap().into_parts();
            assert!(!hosts.contain_host_of(&parts), "{host}");
        }
    }

    #[test]
    fn host_of_the_uri_counts_beside_the_header() {
        let hosts = hosts(&["api.example.com"]);
        let request = |uri: &str, headers: &[&str]| {
            let request =
                headers.iter().fold(Request::builder().uri(uri), |request, host| request.header("host", *host));
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
        assert!(hosts.contain("a.example.com") && hosts.contain("a.b.example.com"));
        assert!(!hosts.contain("example.com") && !hosts.contain(".example.com") && !hosts.contain("aexample.com"));
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
        ] {
            let error = Hosts::default().add(host).unwrap_err();
            assert!(error.contains(remedy), "{host}: {error}");
        }
    }
}
