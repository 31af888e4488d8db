//! Programs that check TOML files against a JSON Schema.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::child::program;

/// A validator, and how it says which files it refuses.
pub struct Validator {
    pub name: &'static str,
    arguments: &'static [&'static str],
    /// The file of the schema as the last argument before the files.
    schema: fn(&Path) -> String,
    refused: fn(&str) -> BTreeSet<PathBuf>,
}

/// What Python's validators say, and what the editors say that have taplo inside.
pub const VALIDATORS: [Validator; 2] = [
    Validator {
        name: "check-jsonschema",
        arguments: &["--output-format", "json", "--schemafile"],
        schema: |path| path.display().to_string(),
        refused: refused_by_check_jsonschema,
    },
    Validator {
        name: "taplo",
        arguments: &["lint", "--no-auto-config", "--colors", "never", "--schema"],
        schema: |path| format!("file://{}", path.display()),
        refused: refused_by_taplo,
    },
];

impl Validator {
    /// The files that do not fit the schema.
    ///
    /// # Panics
    ///
    /// If it refuses a file that it was not asked about, or fails without refusing one.
    pub fn refused(&self, schema: &Path, files: &[PathBuf]) -> BTreeSet<PathBuf> {
        let mut refused = BTreeSet::new();
        // A command line has an end.
        for files in files.chunks(500) {
            let arguments = self.arguments.iter().map(OsStr::new);
            let schema = (self.schema)(schema);
            let done = Command::new(program(self.name))
                .args(arguments.chain([OsStr::new(&schema)]))
                .args(files)
                .output()
                .unwrap_or_else(|error| panic!("{}: {error}", self.name));
            let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
            let found = (self.refused)(&said);
            assert!(found.iter().all(|file| files.contains(file)), "{}: {said}", self.name);
            assert_eq!(found.is_empty(), done.status.success(), "{}: {said}", self.name);
            refused.extend(found);
        }
        refused
    }
}

fn refused_by_check_jsonschema(said: &str) -> BTreeSet<PathBuf> {
    let report: Value = serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let errors = ["errors", "parse_errors"].into_iter().filter_map(|kind| report[kind].as_array()).flatten();
    errors.map(|error| error["filename"].as_str().expect("each error is of a file").into()).collect()
}

fn refused_by_taplo(said: &str) -> BTreeSet<PathBuf> {
    let line = |line: &str| Some(line.split_once("invalid file")?.1.split_once("path=\"")?.1.split_once('"')?.0.into());
    said.lines().filter_map(line).collect()
}
