use serde_saphyr::Location;

/// What is wrong with a file, and where.
pub struct ReadError {
    pub at: Option<Location>,
    pub message: String,
}

impl ReadError {
    pub fn new(at: Location, message: impl Into<String>) -> Self {
        Self {
            at: Some(at),
            message: message.into(),
        }
    }

    /// The error if something is wrong.
    pub fn when(is_wrong: bool, at: Location, message: impl Into<String>) -> Result<(), Self> {
        if is_wrong {
            Err(Self::new(at, message))
        } else {
            Ok(())
        }
    }

    pub fn in_file(self, name: &str) -> anyhow::Error {
        let message = self.message;
        match self.at {
            Some(at) => anyhow::anyhow!("{name}:{}:{}: {message}", at.line(), at.column()),
            None => anyhow::anyhow!("{name}: {message}"),
        }
    }
}

impl From<serde_saphyr::Error> for ReadError {
    fn from(error: serde_saphyr::Error) -> Self {
        let text = error.without_snippet().to_string();
        // The location is written before the message.
        let message = text
            .rsplit_once(" at line ")
            .map_or(&text[..], |(message, _)| message);
        Self {
            at: error.without_snippet().location(),
            message: message.to_owned(),
        }
    }
}
