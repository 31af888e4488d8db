use std::fmt;

use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};
use throttle_core::ConfigError;

/// Certificates for TLS connections, as PEM text: your own certificate authority, and the client
/// certificate that a server may demand. Without an authority, the server's certificate must be
/// signed by a public one.
///
/// ```
/// use throttle_redis::{Single, Tls};
///
/// let no_certificate = Tls::new().authority("-----BEGIN PRIVATE KEY-----");
/// let error = Single::with_tls("rediss://redis.internal", &no_certificate).unwrap_err();
/// assert_eq!(error.field(), "certificate authority");
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    authority: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Trusts public authorities, and presents no client certificate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts server certificates signed by this authority, instead of public authorities.
    #[must_use]
    pub fn authority(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(certificates.into());
        self
    }

    /// Presents this certificate, with its private key, to servers that demand one
    /// (`tls-auth-clients yes`).
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }

    /// The same certificates for the client. If a text held no certificate, the client would
    /// silently trust no server.
    pub(super) fn certificates(&self) -> Result<TlsCertificates, ConfigError> {
        if let Some(authority) = &self.authority {
            holds(
                "certificate authority",
                authority,
                "-----BEGIN CERTIFICATE-----",
            )?;
        }
        if let Some((certificate, key)) = &self.client {
            holds(
                "client certificate",
                certificate,
                "-----BEGIN CERTIFICATE-----",
            )?;
            holds("client key", key, "PRIVATE KEY-----")?;
        }
        let client = self.client.clone();
        let client_tls = client.map(|(client_cert, client_key)| ClientTlsConfig {
            client_cert,
            client_key,
        });
        Ok(TlsCertificates {
            client_tls,
            root_cert: self.authority.clone(),
        })
    }

    /// The server, reached by TLS with these certificates.
    pub(super) fn on(&self, server: ConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
        match Client::build_with_tls(server, self.certificates()?) {
            Ok(client) => Ok(client.get_connection_info().clone()),
            Err(error) => {
                let rule =
                    format!("they must be PEM, for a URL that begins with rediss://: {error}");
                Err(ConfigError::new("TLS certificates", "unreadable", rule))
            }
        }
    }
}

/// Checks that a text holds the label of a PEM section.
fn holds(field: &'static str, text: &[u8], label: &str) -> Result<(), ConfigError> {
    if text
        .windows(label.len())
        .any(|part| part == label.as_bytes())
    {
        return Ok(());
    }
    let rule = format!("it must be PEM text that holds {label:?}");
    Err(ConfigError::new(field, "unreadable", rule))
}

impl fmt::Debug for Tls {
    /// Shows no certificate and no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tls");
        shown
            .field("authority", &self.authority.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_must_hold_what_it_is_for() {
        let (certificate, key) = ("-----BEGIN CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----");
        let field = |tls: Tls| tls.certificates().err().map(|error| error.field());
        assert_eq!(
            field(Tls::new().authority(key)),
            Some("certificate authority")
        );
        assert_eq!(
            field(Tls::new().client_certificate(key, key)),
            Some("client certificate")
        );
        assert_eq!(
            field(Tls::new().client_certificate(certificate, certificate)),
            Some("client key")
        );
        assert_eq!(
            field(
                Tls::new()
                    .authority(certificate)
                    .client_certificate(certificate, key)
            ),
            None
        );
    }

    #[test]
    fn errors_of_certificates_say_what_a_text_must_hold() {
        let error = |tls: Tls| tls.certificates().expect_err("wrong").to_string();
        assert_eq!(
            error(Tls::new().authority("x")),
            "certificate authority is unreadable: it must be PEM text that holds \"-----BEGIN \
                CERTIFICATE-----\""
        );
        assert_eq!(
            error(Tls::new().client_certificate("-----BEGIN CERTIFICATE-----", "x")),
            "client key is unreadable: it must be PEM text that holds \"PRIVATE KEY-----\""
        );
    }

    #[test]
    fn the_certificates_given_last_replace_earlier_ones() {
        let [old, new] = ["old", "new"].map(|name| format!("-----BEGIN CERTIFICATE----- {name}"));
        let [old_key, new_key] =
            ["old", "new"].map(|name| format!("-----BEGIN PRIVATE KEY----- {name}"));
        let tls = Tls::new()
            .authority(old.as_str())
            .client_certificate(old.as_str(), old_key);
        let tls = tls
            .authority(new.as_str())
            .client_certificate(new.as_str(), new_key.as_str());
        let all = tls.certificates().expect("PEM");
        assert_eq!(all.root_cert.as_deref(), Some(new.as_bytes()));
        let client = all.client_tls.expect("a certificate");
        assert_eq!(
            (client.client_cert, client.client_key),
            (new.into(), new_key.into())
        );
    }

    #[test]
    fn certificates_show_whether_there_are_any_and_nothing_else() {
        for (tls, shown) in [
            (Tls::new(), "Tls { authority: false, client: false }"),
            (
                Tls::new().authority("secret"),
                "Tls { authority: true, client: false }",
            ),
            (
                Tls::new().client_certificate("secret", "secret"),
                "Tls { authority: false, client: true }",
            ),
        ] {
            assert_eq!(format!("{tls:?}"), shown);
        }
    }

    #[test]
    fn certificates_are_for_urls_of_tls() {
        let url = |url| super::super::url::read("Redis URL", url).expect("a URL");
        assert!(Tls::new().on(url("rediss://host")).is_ok());
        let error = Tls::new().on(url("redis://host")).expect_err("not by TLS");
        assert_eq!(
            (error.field(), error.value()),
            ("TLS certificates", "unreadable")
        );
        assert!(
            error
                .to_string()
                .contains("for a URL that begins with rediss://: "),
            "{error}"
        );
    }
}
