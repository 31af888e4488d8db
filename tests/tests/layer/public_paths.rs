//! The page is to be built on the public API alone. What it still uses of the crate's private items
//! is listed here, and the list only gets shorter.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A room of the crate, and the private paths that its files may use.
const ROOMS: [(&str, &[&str]); 1] = [("observe/dashboard", &DASHBOARD)];

const DASHBOARD: [&str; 4] = [
    "lock::lock",
    "lock::try_lock",
    "observe::decider::Decider",
    "time::micros",
];

#[test]
fn rooms_use_no_private_paths_but_those_that_are_listed() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../throttle-tower/src");
    for (room, listed) in ROOMS {
        let own = room.replace('/', "::");
        let mut private = BTreeSet::new();
        for file in files(&source.join(room)) {
            let text = code(&fs::read_to_string(&file).unwrap());
            let of_crate = paths(&text)
                .into_iter()
                .filter(|path| *path != own && !path.starts_with(&format!("{own}::")));
            private.extend(of_crate.filter(|path| !is_public(&source, path)));
        }
        let listed: BTreeSet<String> = listed.iter().map(|path| (*path).to_owned()).collect();
        let new: Vec<_> = private.difference(&listed).collect();
        let unused: Vec<_> = listed.difference(&private).collect();
        assert!(
            new.is_empty() && unused.is_empty(),
            "{room} is to use public items alone. New private paths: {new:#?}; paths to remove \
            from the list, because nothing uses them: {unused:#?}"
        );
    }
}

#[test]
fn paths_are_read_from_imports_and_from_code() {
    let text = code(
        "use crate::{lock::lock, limit::{self, Numbers as N}};\n// crate::comment\nlet a = \
        crate::time::micros(b);\npub(in crate::event) struct A;\n#[cfg(test)]\nmod tests { use \
        crate::hidden; }",
    );
    let expected = [
        "event",
        "limit",
        "limit::Numbers",
        "lock::lock",
        "time::micros",
    ];
    assert_eq!(paths(&text), expected.map(str::to_owned).into());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../throttle-tower/src");
    for (path, expected) in [
        ("ThrottleLayer", true),
        ("limit", true),
        ("limit::OnError", true),
        ("limit::Applied", false),
        ("limit::explained::Explanation", false),
        ("lock", false),
        ("throttle::Shared", false),
    ] {
        assert_eq!(is_public(&source, path), expected, "{path}");
    }
}

/// The sources in a folder that are compiled for users.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.flat_map(|entry| match entry.file_name().to_str().unwrap() {
        "tests" | "tests.rs" => Vec::new(),
        _ if entry.path().is_dir() => files(&entry.path()),
        name if name.ends_with(".rs") => vec![entry.path()],
        _ => Vec::new(),
    });
    files.collect()
}

/// The text without comments, and without unit tests, which stand at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// All paths that begin at the crate's root, without `crate::`.
fn paths(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (start, own) in text.match_indices("crate::") {
        read_tree(&text[start + own.len()..], "", &mut found);
    }
    found
}

/// Reads a path, or a tree of paths in braces. Returns what follows.
fn read_tree<'a>(text: &'a str, prefix: &str, found: &mut BTreeSet<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = read_tree(rest, prefix, found).trim_start();
            // An `as` and its name.
            let end = rest.find([',', '}']).unwrap();
            match rest.split_at(end) {
                (_, after) if after.starts_with('}') => return &after[1..],
                (_, after) => rest = after[1..].trim_start(),
            }
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
        }
    }
    let is_of_name = |char: char| char.is_alphanumeric() || char == '_';
    let end = text.find(|char| !is_of_name(char)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = match (prefix, name) {
        (prefix, "self" | "") => prefix.to_owned(),
        ("", name) => name.to_owned(),
        (prefix, name) => format!("{prefix}::{name}"),
    };
    match rest.strip_prefix("::") {
        Some(rest) if name.chars().all(|char| !char.is_uppercase()) => {
            read_tree(rest, &path, found)
        }
        // What belongs to a type follows it.
        _ => {
            found.insert(path);
            rest
        }
    }
}

/// Whether a path from the root is public, by the text of the modules on its way.
fn is_public(source: &Path, path: &str) -> bool {
    let (mut folder, mut module) = (source.to_owned(), source.join("lib.rs"));
    path.split("::").all(|name| {
        let is_public = public_names(&fs::read_to_string(&module).unwrap()).contains(name);
        module = folder.join(format!("{name}.rs"));
        folder.push(name);
        if !module.exists() {
            module = folder.join("mod.rs");
        }
        is_public
    })
}

/// What a module makes public: its items and re-exports.
fn public_names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let text = code(text);
    for (start, own) in text.match_indices("pub use ") {
        let tree = text[start + own.len()..].split(';').next().unwrap();
        let words = tree.split(|char: char| !char.is_alphanumeric() && char != '_');
        names.extend(words.map(str::to_owned));
    }
    for kind in ["mod", "fn", "struct", "enum", "trait", "type", "const"] {
        for item in text.split(&format!("pub {kind} ")).skip(1) {
            let name = item.split(|char: char| !char.is_alphanumeric() && char != '_');
            names.extend(name.take(1).map(str::to_owned));
        }
    }
    // The root re-exports the builders of algorithms by a glob.
    if text.contains("algorithm::builders::*") {
        names.extend(["Gcra", "FixedWindow"].map(str::to_owned));
    }
    names
}
