//! The file that a rule file names as its candidate.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::de::DeTable;

use super::file_value::FileValue;
use super::form::*;
use super::problem::RulesError;
use super::{Rules, file};
use crate::ThrottleBuilder;
use crate::throttle::check_candidate;

/// What a file says of its candidate.
#[derive(Clone)]
pub(super) struct Named {
    file: String,
    pub(super) span: Range<usize>,
}

pub(super) const CANDIDATE: FieldForm = One(
    "candidate",
    "Another rule file, whose limits are asked about the same requests and only counted.",
    Optional,
    Text(
        "file",
        "write the path of another rule file, as in \"next.toml\"",
    ),
);

impl Named {
    pub(super) fn read(root: &FileValue<'_>) -> Option<Self> {
        let field = root.get("candidate")?;
        Some(Self {
            file: field.text()?.to_owned(),
            span: field.span.clone(),
        })
    }
}

/// What that file says.
pub(super) struct Beside {
    rules: Rules,
    /// Its layer, on no store yet.
    builder: ThrottleBuilder,
}

impl Rules {
    /// Reads the file of the candidate, if there is one.
    pub(super) fn read_candidate(&self) -> Result<Option<Arc<Beside>>, RulesError> {
        let Some(Named { file, span }) = &self.document.candidate else {
            return Ok(None);
        };
        let problem =
            |rule: &str| self.problem(Some(span.clone()), format!("candidate is {file:?}: {rule}"));
        let rule = "these rules were read from a text, so there is no folder to look in; read \
            them with \
                    Rules::from_path, or pass a layer of that file to ThrottleLayer::candidate";
        let path = self
            .path
            .as_ref()
            .ok_or_else(|| problem(rule))?
            .with_file_name(file);
        let name: Arc<str> = path.display().to_string().into();
        let text = file::read(&path, &name).map_err(|error| problem(&error.to_string()))?;
        let rules = Self::alone(name, Some(path), text.into(), self.registry.clone())?;
        if let Some(nested) = &rules.document.candidate {
            let message = format!(
                "candidate is {:?}: a candidate has none of its own; remove it",
                nested.file
            );
            return Err(rules.problem(Some(nested.span.clone()), message));
        }
        let builder = rules.document.builder().limits(rules.tree());
        let checked = builder
            .clone()
            .build()
            .and_then(|layer| check_candidate(&layer.current.now()));
        checked.map_err(|error| rules.error(&error))?;
        Ok(Some(Arc::new(Beside { rules, builder })))
    }

    /// The name of the candidate, and its layer on no store yet.
    pub(super) fn candidate(&self) -> Option<(&str, &ThrottleBuilder)> {
        Some((
            &self.document.candidate.as_ref()?.file,
            &self.candidate.as_ref()?.builder,
        ))
    }

    /// What the file of the candidate said when it was read.
    pub(super) fn text_of_candidate(&self) -> Option<&str> {
        Some(&self.candidate.as_ref()?.rules.text)
    }

    /// What it says now, or why it cannot be read.
    pub(super) fn look_at_candidate(&self) -> Option<String> {
        look_beside(self.path.as_ref()?, &self.text)
    }
}

/// What the file of the candidate says that the rules of a file name, or why it cannot be read.
pub(super) fn look_beside(path: &Path, text: &str) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    let beside = path.with_file_name(table.get_ref().get("candidate")?.get_ref().as_str()?);
    Some(file::read(&beside, &"candidate".into()).unwrap_or_else(|error| error.to_string()))
}
