//! A folder of an example, copied out of the repository, finds its packages once the last lines of
//! its `Cargo.toml` are uncommented, as the README in it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use throttle_extra::child;

const START: &str = "# [patch.crates-io]\n";

/// The manifest of a copy, as its last comment says.
fn uncommented(manifest: &str, repository: &Path) -> String {
    let (before, lines) = manifest.split_once(START).expect("the lines to uncomment");
    let lines = lines.lines().map(|line| {
        line.strip_prefix("# ").expect(
            "nothing but comments \
        follows",
        )
    });
    let patch =
        lines.map(|line| line.replace("/path/to/throttle", repository.to_str().unwrap()) + "\n");
    format!("{before}[patch.crates-io]\n{}", patch.collect::<String>())
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

#[test]
fn quickstart_compiles_in_a_copy_without_a_network() {
    let (repository, copy) = (repository(), child::folder());
    let example = repository.join("examples/quickstart");
    let manifest = fs::read_to_string(example.join("Cargo.toml")).unwrap();
    fs::create_dir(copy.join("src")).unwrap();
    fs::write(copy.join("Cargo.toml"), uncommented(&manifest, &repository)).unwrap();
    fs::copy(repository.join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
    fs::copy(example.join("src/main.rs"), copy.join("src/main.rs")).unwrap();
    let cargo = Command::new("cargo")
        .args(["check", "--offline"])
        .current_dir(&copy)
        .output()
        .unwrap();
    assert!(
        cargo.status.success(),
        "{}",
        String::from_utf8_lossy(&cargo.stderr)
    );
    fs::remove_dir_all(copy).unwrap();
}

#[test]
fn every_example_finds_its_packages_in_a_copy() {
    let repository = repository();
    let mut examples = 0;
    for example in fs::read_dir(repository.join("examples")).unwrap() {
        let example = example.unwrap().path();
        let copy = child::folder();
        fs::create_dir(copy.join("src")).unwrap();
        fs::write(copy.join("src/main.rs"), "fn main() {}").unwrap();
        fs::copy(repository.join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
        let manifest = fs::read_to_string(example.join("Cargo.toml")).unwrap();
        let resolve = |manifest: &str| {
            fs::write(copy.join("Cargo.toml"), manifest).unwrap();
            let cargo = Command::new("cargo")
                .args(["tree", "--offline", "--edges", "normal"])
                .current_dir(&copy)
                .output();
            let cargo = cargo.unwrap();
            (
                cargo.status.success(),
                String::from_utf8_lossy(&[cargo.stdout, cargo.stderr].concat()).into_owned(),
            )
        };
        assert!(
            !resolve(&manifest).0,
            "{example:?}: released by now? Then the lines can go"
        );
        let (resolved, output) = resolve(&uncommented(&manifest, &repository));
        assert!(
            resolved && output.contains("tower-throttle v"),
            "{example:?}: {output}"
        );
        fs::remove_dir_all(copy).unwrap();
        examples += 1;
    }
    assert!(examples >= 12, "{examples}");
}
