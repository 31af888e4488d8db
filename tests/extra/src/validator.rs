//! Programs that check TOML files against a JSON Schema.

use std::collections::BTreeSet;
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
    /// What it says last if it refuses a file. On a busy machine taplo ends before it has written
    /// all it has to say.
    last: &'static str,
}

/// What Python's validators say, and what the editors say that have taplo inside.
pub const VALIDATORS: [Validator; 2] = [
    Validator {
        name: "check-jsonschema",
        arguments: &["--output-format", "json", "--schemafile"],
        schema: |path| path.display().to_string(),
        refused: refused_by_check_jsonschema,
        last: "",
    },
    Validator {
        name: "taplo",
        arguments: &["lint", "--no-auto-config", "--colors", "never", "--schema"],
        schema: |path| format!("file://{}", path.display()),
        refused: refused_by_taplo,
        last: "operation failed",
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
            let mut runs = (0..10).map(|_| self.run(schema, files));
            let whole = |(succeeds, said): &(bool, String)| *succeeds || said.contains(self.last);
            let (succeeds, said) = runs
                .find(whole)
                .unwrap_or_else(|| panic!("{} is cut off", self.name));
            let found = (self.refused)(&said);
            assert!(
                found.iter().all(|file| files.contains(file)),
                "{}: {said}",
                self.name
            );
            assert_eq!(found.is_empty(), succeeds, "{}: {said}", self.name);
            refused.extend(found);
        }
        refused
    }

    /// Whether it accepts all files, and what it says.
    fn run(&self, schema: &Path, files: &[PathBuf]) -> (bool, String) {
        let done = Command::new(program(self.name))
            .args(self.arguments)
            .arg((self.schema)(schema))
            .args(files)
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        (done.status.success(), said.into_owned())
    }
}

fn refused_by_check_jsonschema(said: &str) -> BTreeSet<PathBuf> {
    let report: Value =
        serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let errors = ["errors", "parse_errors"]
        .into_iter()
        .filter_map(|kind| report[kind].as_array())
        .flatten();
    errors
        .map(|error| {
            error["filename"]
                .as_str()
                .expect("each error is of a file")
                .into()
        })
        .collect()
}

fn refused_by_taplo(said: &str) -> BTreeSet<PathBuf> {
    let line = |line: &str| {
        Some(
            line.split_once("invalid file")?
                .1
                .split_once("path=\"")?
                .1
                .split_once('"')?
                .0
                .into(),
        )
    };
    said.lines().filter_map(line).collect()
}
