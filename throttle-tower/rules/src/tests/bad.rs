//! Every file under `bad/` is refused with the text beside it.

use std::fs;
use std::path::PathBuf;

use crate::{Registry, Rules};
use throttle_tower::Header;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tests/bad")
}

pub(crate) fn registry() -> Registry {
    Registry::new()
        .key("api-key", Header::new("x-api-key"))
        .key_async("session", |_| async { Some(7) })
        .cost("tokens", |_| 1)
        .classes("importance", |_| "normal")
        .condition("internal", |_| false)
        .lookup("plan-of", |_| async { Some("free") })
        .refund("cached", |_, _| false)
}

fn refusal(name: &str, text: &str) -> String {
    match Rules::from_str(name, text, registry()) {
        Ok(_) => "is accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// With `THROTTLE_WRITE_REFUSALS=1` it writes the texts, and fails all the same: read what changed,
/// and run it again.
#[test]
fn bad_files_are_refused_with_every_problem_where_it_is() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            Some(
                entry
                    .unwrap()
                    .file_name()
                    .to_str()?
                    .strip_suffix(".toml")?
                    .to_owned(),
            )
        })
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 60, "{}", names.len());
    let mut wrong = Vec::new();
    for name in names {
        let file = format!("{name}.toml");
        let refusal = refusal(&file, &fs::read_to_string(folder().join(&file)).unwrap()) + "\n";
        let golden = folder().join(format!("{name}.txt"));
        if std::env::var_os("THROTTLE_WRITE_REFUSALS").is_some() {
            fs::write(golden, refusal).unwrap();
            wrong.push(format!("{file} is written"));
        } else if fs::read_to_string(golden).unwrap_or_default() != refusal {
            wrong.push(refusal);
        }
    }
    let remedy =
        "THROTTLE_WRITE_REFUSALS=1 cargo test -p tower-throttle-rules --all-features --lib bad";
    assert!(
        wrong.is_empty(),
        "{}\nIf that is right, write the texts anew with: {remedy}",
        wrong.join("\n")
    );
}
