use std::fmt;

use serde_saphyr::Location;

/// What is wrong with a file, and where.
#[derive(Debug)]
pub struct ReadError {
    file: String,
    at: Option<Location>,
    message: String,
}

impl ReadError {
    pub fn new(file: &str, at: impl Into<Option<Location>>, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            at: at.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(at) = self.at {
            write!(f, ":{}:{}", at.line(), at.column())?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ReadError {}
