use crate::json::{object, quoted};

/// The description of a header in an OpenAPI document.
pub(super) struct HeaderSchema {
    kind: &'static str,
    text: &'static str,
}

impl HeaderSchema {
    pub(super) const LIMIT: Self = Self::integer("The limit.");
    pub(super) const REMAINING: Self = Self::integer("What remains.");
    pub(super) const RESET: Self = Self::integer("Seconds until all is left again.");

    pub(super) const fn integer(text: &'static str) -> Self {
        Self {
            kind: "integer",
            text,
        }
    }

    pub(super) const fn string(text: &'static str) -> Self {
        Self {
            kind: "string",
            text,
        }
    }

    /// Returns a Header Object.
    pub(super) fn object(&self) -> String {
        object(&[
            ("description", quoted(self.text)),
            ("schema", object(&[("type", quoted(self.kind))])),
        ])
    }
}
