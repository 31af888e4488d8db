//! URLs of servers, as written in a configuration.

#[cfg(any(feature = "cluster", feature = "sentinel"))]
use redis::ConnectionAddr;
use redis::{ConnectionInfo, IntoConnectionInfo};
use throttle_core::ConfigError;

use super::translate::tcp_settings;

/// Reads the server and its credentials from a URL, with the settings of every connection here.
pub(super) fn read(field: &'static str, url: &str) -> Result<ConnectionInfo, ConfigError> {
    if let Some(rule) = refusal(url, cfg!(feature = "tls")) {
        return Err(ConfigError::new(field, shown(url), rule));
    }
    install_crypto_provider();
    match url.into_connection_info() {
        Ok(server) => Ok(server.set_tcp_settings(tcp_settings())),
        Err(error) => {
            let rule = format!(
                "it must be redis://[user[:password]@]host[:port][/database], or rediss:// for \
                    TLS: {error}"
            );
            Err(ConfigError::new(field, shown(url), rule))
        }
    }
}

/// The TLS library panics at the first connection if no provider was chosen. A provider that the
/// application has installed is kept.
fn install_crypto_provider() {
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Reads several URLs, and completes each server `with` something.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(super) fn read_all<'a>(
    field: &'static str,
    urls: impl IntoIterator<Item = &'a str>,
    with: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
) -> Result<Vec<ConnectionInfo>, ConfigError> {
    urls.into_iter()
        .map(|url| with(read(field, url)?))
        .collect()
}

#[cfg(any(feature = "cluster", all(feature = "sentinel", feature = "tls")))]
pub(super) fn is_over_tls(server: &ConnectionInfo) -> bool {
    matches!(server.addr(), ConnectionAddr::TcpTls { .. })
}

/// The reason to refuse a URL that the client would accept, or would refuse without a remedy.
fn refusal(url: &str, tls: bool) -> Option<&'static str> {
    if url.contains('#') {
        return Some(
            "it must have no fragment: #insecure would switch off the verification of the \
                server's certificate without \
             a word of it in the program. To trust a private authority, use Tls::authority. A # \
             in a password is \
             written %23",
        );
    }
    let is_over_tls = |scheme: &str| {
        ["rediss", "valkeys"]
            .iter()
            .any(|name| name.eq_ignore_ascii_case(scheme))
    };
    if scheme(url).is_some_and(is_over_tls) && !tls {
        return Some("TLS needs the feature `tls` of tower-throttle-redis, which is not enabled");
    }
    None
}

/// Returns the scheme only, because the URL may contain a password.
fn shown(url: &str) -> String {
    format!("{}://…", scheme(url).unwrap_or("(no scheme)"))
}

/// What stands before `://`, if it can be a scheme. It may also be a password: of a URL whose
/// scheme was forgotten, and which stands before another URL.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once("://")?;
    let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    scheme.bytes().all(is_of_scheme).then_some(scheme)
}

/// The addresses of servers, without credentials.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(super) fn addresses(servers: &[ConnectionInfo]) -> String {
    let addresses: Vec<String> = servers
        .iter()
        .map(|server| server.addr().to_string())
        .collect();
    addresses.join(", ")
}

/// How a server at an address is reached: as one that a URL names.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(super) fn at(named: &ConnectionInfo, (host, port): (String, u16)) -> ConnectionInfo {
    let address = match named.addr() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    named.clone().set_addr(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_refused_with_and_without_tls() {
        for url in [
            "rediss://host#insecure",
            "rediss://:pass@host:1/0#insecure",
            "redis://host#x",
            "unix:///a#b",
        ] {
            for tls in [true, false] {
                assert!(
                    refusal(url, tls).is_some_and(|rule| rule.contains("#insecure")),
                    "{url}"
                );
            }
        }
        assert_eq!(refusal("redis://:a%23b@host", false), None);
    }

    #[test]
    fn tls_without_its_feature_names_the_feature() {
        for url in ["rediss://host", "valkeys://host", "REDISS://host"] {
            assert!(
                refusal(url, false).is_some_and(|rule| rule.contains("feature `tls`")),
                "{url}"
            );
            assert_eq!(refusal(url, true), None);
        }
        assert_eq!(refusal("redis://host", false), None);
    }

    #[test]
    fn url_without_its_scheme_shows_no_password() {
        for url in [
            "user:secret@one:1,redis://two",
            "secret@one:1,redis://two",
            "user:secret@one:1",
        ] {
            let error = read("Redis URL", url).expect_err("no scheme");
            assert_eq!(error.value(), "(no scheme)://…");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    #[test]
    fn addresses_are_listed_without_credentials() {
        let servers = ["redis://user:secret@one:1", "redis://two"]
            .map(|url| read("cluster URLs", url).expect("a URL"));
        assert_eq!(addresses(&servers), "one:1, two:6379");
        let error = read("cluster URLs", "redis://user:secret@host:x").expect_err("no port");
        assert_eq!(
            (error.field(), error.value()),
            ("cluster URLs", "redis://…")
        );
    }

    #[test]
    fn an_error_shows_the_scheme_of_a_url_and_how_urls_are_written() {
        let error = |url| read("Redis URL", url).expect_err("no URL of Redis");
        let text = "Redis URL is http://…: it must be \
            redis://[user[:password]@]host[:port][/database], or rediss:// \
                    for TLS: ";
        assert!(
            error("http://:secret@host").to_string().starts_with(text),
            "{}",
            error("http://:secret@host")
        );
        assert_eq!(error("secret@host").value(), "(no scheme)://…");
        assert_eq!(error("redis://:secret@host#x").value(), "redis://…");
        let server = read("Redis URL", "redis://user:secret@host:7/3").expect("a URL");
        assert_eq!(server.addr().to_string(), "host:7");
        let settings = server.redis_settings();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("user"), Some("secret"), 3)
        );
    }

    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    #[test]
    fn servers_that_a_store_names_are_reached_like_the_one_of_the_url() {
        let of = |url| read("cluster URLs", url).expect("a URL");
        let server = at(&of("redis://user:secret@one"), ("two".to_owned(), 7));
        assert_eq!(
            (
                server.addr().to_string().as_str(),
                server.tcp_settings().nodelay()
            ),
            ("two:7", true)
        );
        assert_eq!(server.redis_settings().password(), Some("secret"));
        #[cfg(feature = "tls")]
        assert!(matches!(
            at(&of("rediss://one"), ("two".to_owned(), 7)).addr(),
            ConnectionAddr::TcpTls { .. }
        ));
    }
}
