//! Reads a line in any of the formats.

use anyhow::bail;

use crate::args::{Format, LogArguments};
use crate::combined;
use crate::entry::Entry;
use crate::flaw::Flaw;
use crate::json::{Json, Preset};

/// Reads lines of a format.
pub enum LineReader {
    Combined,
    Json(Box<Json>),
}

impl LineReader {
    /// # Errors
    ///
    /// If an option names a field, and the format has none.
    pub fn new(arguments: &LogArguments) -> anyhow::Result<Self> {
        let reader = Self::of(arguments.format, arguments);
        let LogArguments {
            at,
            duration,
            ip,
            method,
            path,
            host,
            status,
            route,
            ..
        } = arguments;
        let is_given = [at, duration, ip, method, path, host, status, route]
            .iter()
            .any(|field| field.is_some());
        if matches!(reader, Self::Combined) && (is_given || !arguments.fields.is_empty()) {
            bail!("this format has no fields to name; see --format for those of JSON lines");
        }
        Ok(reader)
    }

    /// The reader of a format, whatever format the arguments have.
    pub fn of(format: Format, arguments: &LogArguments) -> Self {
        match Preset::of(format) {
            Some(preset) => Self::Json(Box::new(Json::new(&preset, arguments))),
            None => Self::Combined,
        }
    }

    /// # Errors
    ///
    /// Why the line is not counted.
    pub fn read(&self, line: &[u8]) -> Result<Entry, Flaw> {
        match self {
            Self::Combined => combined::read(line),
            Self::Json(json) => json.read(line),
        }
    }

    /// A field that an option names and that no line of this format has had.
    pub fn missing(&self) -> Option<&str> {
        match self {
            Self::Combined => None,
            Self::Json(json) => json.missing(),
        }
    }
}
