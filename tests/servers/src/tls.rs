//! Certificates that are valid for the loopback address, made anew for each server.

use std::path::Path;
use std::{fs, io};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// The files that a client needs for a server started by [`Builder::tls`](crate::Builder::tls), as
/// PEM text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tls {
    /// The certificate to trust.
    pub authority: String,
    /// A client's certificate, signed by that authority.
    pub client_certificate: String,
    /// The key to it.
    pub client_key: String,
    server_certificate: String,
    server_key: String,
}

impl Tls {
    pub(crate) fn new() -> Self {
        Self::generate().expect("a certificate needs nothing but random numbers")
    }

    fn generate() -> Result<Self, rcgen::Error> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "throttle tests");
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

        let sign = |names: &[&str], name: &str| -> Result<(String, String), rcgen::Error> {
            let key = KeyPair::generate()?;
            let mut leaf = CertificateParams::new(
                names
                    .iter()
                    .map(|&name| name.to_owned())
                    .collect::<Vec<_>>(),
            )?;
            leaf.distinguished_name.push(DnType::CommonName, name);
            Ok((leaf.signed_by(&key, &authority)?.pem(), key.serialize_pem()))
        };
        let (server_certificate, server_key) = sign(&["localhost", "127.0.0.1"], "server")?;
        let (client_certificate, client_key) = sign(&["client.localhost"], "client")?;
        Ok(Self {
            authority: authority.pem(),
            client_certificate,
            client_key,
            server_certificate,
            server_key,
        })
    }

    /// The options that name the files written by `write`.
    pub(crate) fn files(&self) -> [(&'static str, &'static str); 3] {
        [
            ("--tls-ca-cert-file", "authority.pem"),
            ("--tls-cert-file", "server.pem"),
            ("--tls-key-file", "server.key"),
        ]
    }

    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join("authority.pem"), &self.authority)?;
        fs::write(folder.join("server.pem"), &self.server_certificate)?;
        fs::write(folder.join("server.key"), &self.server_key)
    }
}
