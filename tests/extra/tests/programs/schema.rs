//! Validators that know the schema of rule files agree with the parser.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use throttle_extra::child;
use throttle_extra::validator::VALIDATORS;
use throttle_rules::{Registry, Rules, SCHEMA};
use throttle_tower::{Constant, Header};
use toml::Table;

/// What a schema cannot say: a part of the parser's message, and why.
const NOT_IN_A_SCHEMA: [(&str, &str); 25] = [
    ("the name is taken", "names are compared"),
    (
        "no limit has this name",
        "a name is looked up in another list",
    ),
    (
        "compose does not name it",
        "a name is looked up in another list",
    ),
    (
        "it must be the name of a tier",
        "a name is looked up in another table",
    ),
    (
        "it must divide the period",
        "two numbers are computed with, one of them in a text",
    ),
    (
        "be counted exactly",
        "two numbers are computed with, one of them in a text",
    ),
    ("must be full within", "three numbers are computed with"),
    (
        "it must lie between 1 and 9007199254740991",
        "a number in a text is compared",
    ),
    ("the limit admits at most", "two numbers are compared"),
    (
        "no request of the class would be admitted",
        "two numbers are compared",
    ),
    (
        "a larger number for each class below",
        "two numbers are compared",
    ),
    (
        "times as long as another to recover from full use",
        "four numbers are computed with",
    ),
    (
        "it has bits of a host",
        "bits of an address are computed with",
    ),
    (
        "no method has this name",
        "letters are compared with those of all methods",
    ),
    (
        "so one decision cannot choose between them",
        "names are looked up in other lists",
    ),
    (
        "it must be a whole number from",
        "2.0 is a whole number to a schema",
    ),
    (
        "it is never used, because",
        "a form of one element is compared with its place",
    ),
    (
        "it adds nothing to the other parts",
        "a form of one element is compared with their number",
    ),
    (
        "on-missing has no effect",
        "it depends on the parts of another field",
    ),
    (
        "one client could send requests with the key of another",
        "it depends on another field",
    ),
    (
        "it must be at least the length of the first ban",
        "two texts are computed with",
    ),
    ("strikes count toward a ban", "it depends on another field"),
    (
        "an audited limit ",
        "it depends on another field, on defaults, or on compose",
    ),
    ("must hold and not hold", "names in two forms are compared"),
    (
        "is not an address or a CIDR network",
        "the address of a NAT64's prefix is left to the \
        reader",
    ),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The names that the files of the repository use.
fn registry() -> Registry {
    Registry::new()
        .key("api-key", Header::new("x-api-key"))
        .key("tenant", Constant)
        .key_async("session", |_| async { Some(7) })
        .cost("tokens", |_| 1)
        .cost("size", |_| 1)
        .classes("importance", |_| "normal")
        .condition("internal", |_| false)
        .lookup("plan-of", |_| async { Some("free") })
        .refund("cached", |_, _| false)
}

/// The schema for a program with that registry: in place of any text, its names.
fn schema() -> Value {
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
    for (definition, names) in [
        ("registered-key", &["api-key", "tenant"][..]),
        ("registered-key-of-a-future", &["session"]),
        ("registered-cost", &["tokens", "size"]),
        ("registered-classes", &["importance"]),
        ("registered-condition", &["internal"]),
        ("registered-lookup", &["plan-of"]),
        ("registered-refund", &["cached"]),
    ] {
        assert_eq!(
            schema["definitions"][definition]["type"], "string",
            "{definition}"
        );
        schema["definitions"][definition] = json!({ "enum": names });
    }
    schema
}

/// Every rule file of the repository.
fn written_files() -> Vec<PathBuf> {
    let folders = [
        "throttle-tower/rules/src/tests/good",
        "throttle-tower/rules/src/tests/bad",
        "examples/rules",
    ]
    .map(|folder| {
        fs::read_dir(repository().join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect::<Vec<_>>()
    });
    let is_rules = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "toml") && !path.ends_with("Cargo.toml")
    };
    folders.into_iter().flatten().filter(is_rules).collect()
}

/// The file that has every field, with one thing changed: each field, each element and each value
/// in turn. Without `compose`, which would make another name of a limit a mistake, and then
/// `compose` alone.
fn changed_files(folder: &Path) -> Vec<PathBuf> {
    let everything = repository().join("throttle-tower/rules/src/tests/good/everything.toml");
    let mut document: Table = fs::read_to_string(everything).unwrap().parse().unwrap();
    let compose = document.remove("compose").unwrap();
    let mut changed = Vec::new();
    change_each(&document.clone().into(), &mut |value| changed.push(value));
    change_each(&compose, &mut |compose| {
        let mut document = document.clone();
        document.insert("compose".to_owned(), compose);
        changed.push(document.into());
    });
    let documents = changed.iter().filter(|value| value.is_table());
    let texts: BTreeSet<String> = documents
        .map(|value| toml::to_string(value).unwrap())
        .collect();
    let write = |(number, text): (usize, String)| {
        let path = folder.join(format!("{number}.toml"));
        fs::write(&path, text).unwrap();
        path
    };
    texts.into_iter().enumerate().map(write).collect()
}

/// Passes on the value with each change of it, or of one value in it.
fn change_each(value: &toml::Value, changed: &mut dyn FnMut(toml::Value)) {
    others(value).into_iter().for_each(&mut *changed);
    match value {
        toml::Value::Table(table) => {
            let with = |change: &dyn Fn(&mut Table)| {
                let mut table = table.clone();
                change(&mut table);
                toml::Value::Table(table)
            };
            changed(with(&|table| {
                drop(table.insert("zzz".to_owned(), 1.into()))
            }));
            for (name, value) in table {
                changed(with(&|table| drop(table.remove(name))));
                changed(with(&|table| {
                    let value = table.remove(name).unwrap();
                    table.insert(name.replacen('-', "_", 1), value);
                }));
                change_each(value, &mut |value| {
                    changed(with(&|table| {
                        drop(table.insert(name.clone(), value.clone()))
                    }))
                });
            }
        }
        toml::Value::Array(list) => {
            let with = |change: &dyn Fn(&mut Vec<toml::Value>)| {
                let mut list = list.clone();
                change(&mut list);
                toml::Value::Array(list)
            };
            for (place, value) in list.iter().enumerate() {
                changed(with(&|list| drop(list.remove(place))));
                changed(with(&|list| list.push(value.clone())));
                change_each(value, &mut |value| {
                    changed(with(&|list| list[place] = value.clone()))
                });
            }
        }
        _ => {}
    }
}

/// Values of every kind, and such as lie at a bound of a value of this kind.
fn others(value: &toml::Value) -> Vec<toml::Value> {
    let mut others: Vec<toml::Value> = vec![
        true.into(),
        1.into(),
        1.5.into(),
        "zzz".into(),
        "".into(),
        Table::new().into(),
        toml::Value::Array(vec![]),
    ];
    match value {
        toml::Value::Integer(number) => {
            others
                .extend([-1, 0, number - 1, number + 1, 1 << 10, 1 << 24, 1 << 53].map(Into::into));
        }
        // A word or a name is not another one. What has a form may have nearly the same.
        toml::Value::String(text) if !text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') => {
            let texts = [
                text.to_uppercase(),
                format!("{text}x"),
                format!("{text} "),
                format!("0{text}"),
                format!("-{text}"),
            ];
            others.extend(texts.map(Into::into));
        }
        toml::Value::Boolean(is) => others.push((!is).into()),
        _ => {}
    }
    others
}

/// What the parser says against a file, or nothing.
fn refusal(file: &Path) -> Option<String> {
    Rules::from_path(file, registry())
        .err()
        .map(|error| error.to_string())
}

/// How the files were taken by a validator and by the parser.
#[derive(Default)]
struct Comparison {
    files: usize,
    refused_by_both: usize,
    /// Right files that the validator refuses.
    too_strict: Vec<PathBuf>,
    /// What the parser says of files that the validator accepts.
    not_seen: Vec<String>,
}

impl Comparison {
    fn of(files: &[PathBuf], refused: &BTreeSet<PathBuf>) -> Self {
        let mut comparison = Self {
            files: files.len(),
            ..Self::default()
        };
        for file in files {
            match (refusal(file), refused.contains(file)) {
                (None, true) => comparison.too_strict.push(file.clone()),
                (Some(refusal), false) => comparison.not_seen.push(refusal),
                (Some(_), true) => comparison.refused_by_both += 1,
                (None, false) => {}
            }
        }
        comparison
    }
}

#[test]
fn validators_agree_with_the_parser() {
    let folder = child::folder();
    let path = folder.join("schema.json");
    fs::write(&path, schema().to_string()).unwrap();
    let (written, changed) = (written_files(), changed_files(&folder));
    assert!(
        written.len() > 150 && changed.len() > 1_000,
        "{} and {}",
        written.len(),
        changed.len()
    );
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    for validator in VALIDATORS {
        let mut all = Comparison::default();
        for (files, what) in [
            (&written, "of the repository"),
            (&changed, "with one change"),
        ] {
            let Comparison {
                files,
                refused_by_both,
                too_strict,
                not_seen,
            } = Comparison::of(files, &validator.refused(&path, files));
            let alike = files - too_strict.len() - not_seen.len();
            println!(
                "{}: {alike} of {files} files {what} alike, {refused_by_both} refused",
                validator.name
            );
            all.files += files;
            all.too_strict.extend(too_strict);
            all.not_seen.extend(not_seen);
        }
        assert!(
            all.too_strict.is_empty(),
            "{} refuses what is right: {:?}",
            validator.name,
            all.too_strict
        );
        let reason = |refusal: &String| {
            NOT_IN_A_SCHEMA
                .iter()
                .find(|(part, _)| refusal.contains(part))
        };
        let unknown: Vec<&String> = all
            .not_seen
            .iter()
            .filter(|refusal| reason(refusal).is_none())
            .collect();
        assert!(
            unknown.is_empty(),
            "{} accepts what is wrong: {unknown:#?}",
            validator.name
        );
        for (part, why) in NOT_IN_A_SCHEMA {
            let files = all
                .not_seen
                .iter()
                .filter(|refusal| reason(refusal).is_some_and(|(first, _)| *first == part));
            println!("    {} files: {why}: {part:?}", files.count());
        }
        shown.extend(all.not_seen.iter().filter_map(reason).map(|(part, _)| part));
        assert!(
            all.not_seen.len() * 20 <= all.files,
            "{}: fewer than 95 % are alike",
            validator.name
        );
    }
    let unused: Vec<_> = NOT_IN_A_SCHEMA
        .iter()
        .filter(|(part, _)| !shown.contains(part))
        .collect();
    assert!(
        unused.is_empty(),
        "no file shows this difference: {unused:?}"
    );
    fs::remove_dir_all(folder).unwrap();
}

/// The first line of a file names the schema.
#[test]
fn example_is_checked_by_the_schema_that_it_names() {
    let (folder, example) = (
        child::folder(),
        repository().join("examples/rules/throttle.toml"),
    );
    let text = fs::read_to_string(&example).unwrap();
    let path = "../../throttle-tower/rules/throttle.schema.json";
    assert!(text.starts_with(&format!("#:schema {path}\n")), "{text}");
    fs::write(folder.join("throttle.schema.json"), SCHEMA).unwrap();
    let lint = |file: &Path| {
        child::run(
            "taplo",
            &["lint", "--no-auto-config", file.to_str().unwrap()],
            "",
        )
    };
    assert!(lint(&example).0, "{}", lint(&example).1);
    for (change, is_right) in [("burst", true), ("brust", false)] {
        let file = folder.join(format!("{change}.toml"));
        fs::write(
            &file,
            text.replace(path, "./throttle.schema.json")
                .replace("burst", change),
        )
        .unwrap();
        assert_eq!(lint(&file).0, is_right, "{}", lint(&file).1);
    }
    fs::remove_dir_all(folder).unwrap();
}
