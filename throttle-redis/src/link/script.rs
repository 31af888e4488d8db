/// A script, and the name that a server knows it by.
pub(crate) struct Script {
    source: String,
    sha: String,
}

impl Script {
    pub(crate) fn new(source: String) -> Self {
        let sha = sha1_smol::Sha1::from(source.as_bytes())
            .digest()
            .to_string();
        Self { source, sha }
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// SHA-1 of the source, in hexadecimal.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}
