//! Names in the sources: a type is a noun, and its name is used once in its crate; an index is not
//! called a place.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::public_paths::files;

const CRATES: [&str; 4] = [
    "throttle-core",
    "throttle-tower",
    "throttle-tower/rules",
    "throttle-redis",
];

/// Files that only tests compile, next to those called `tests`.
const TEST_FILES: [&str; 2] = ["failing_backend.rs", "memory/models.rs"];

/// The most `inline(always)`, `inline(never)` and `cold` in `throttle-tower`. Each is there because
/// a row of `tests/peers/instructions.txt` is more than 5 % shorter with it.
const MOST_HINTS: usize = 25;

/// Public types whose names stay.
const PUBLIC: [&str; 7] = [
    "BoxPrepared",
    "LookupFailed",
    "OnMissing",
    "PlansUnkeyed",
    "Rated",
    "Registered",
    "Unkeyed",
];

/// Nouns that end in `ed` or `ing`.
const NOUNS: [&str; 11] = [
    "Binding", "Ending", "Finding", "Heading", "Nesting", "Reading", "Ring", "Ruling", "Spelling",
    "Standing", "Warning",
];

/// Words that are no nouns, and do not end in `ed` or `ing`.
const PARTICIPLES: [&str; 25] = [
    "Begun", "Beside", "Built", "Done", "Driven", "Either", "Else", "Found", "Given", "Heard",
    "Held", "Hidden", "Kept", "Known", "Left", "Lost", "Rest", "Seen", "Sent", "Shown", "Spent",
    "Struck", "Taken", "Told", "Written",
];

#[test]
fn type_name_is_defined_once_in_its_crate() {
    let mut found = files_by(type_names);
    found.retain(|_, files| files.len() > 1);
    let remedy = "give each type a name of its own, for example with the word of its folder";
    assert!(found.is_empty(), "{remedy}: {found:#?}");
}

#[test]
fn type_is_named_by_a_noun() {
    let found = files_by(|text| {
        let names = type_names(text).into_iter();
        names.filter(|name| !is_noun(name)).collect()
    });
    let remedy = "name the type by what it holds: `HeldRequest`, not `Held`";
    assert!(found.is_empty(), "{remedy}: {found:#?}");
}

#[test]
fn index_is_not_called_a_place() {
    let found = files_by(|text| says_place(text).then_some("place").into_iter().collect());
    let remedy = "say index, position, slot or column, as it fits";
    assert!(found.is_empty(), "{remedy}: {found:#?}");
}

#[test]
fn compiler_is_advised_only_where_users_notice() {
    let hints = ["inline(always)", "inline(never)", "#[cold]"];
    let files = sources("throttle-tower")
        .into_iter()
        .filter_map(|(file, text)| {
            let count: usize = hints.iter().map(|hint| text.matches(hint).count()).sum();
            (count > 0).then_some((file, count))
        });
    let files: Vec<_> = files.collect();
    let count: usize = files.iter().map(|(_, count)| count).sum();
    assert!(
        count <= MOST_HINTS,
        "{count} of {hints:?}, and at most {MOST_HINTS} may be there: remove one that saves at \
        most 5 % of the instructions of a row. {files:#?}"
    );
}

#[test]
fn names_are_read_from_code_alone() {
    let text = code(
        "/// struct Comment;\npub(crate) struct A<'a>(&'a str);\n    enum B {}\ntype C = A;\ntrait D {\n \
        type E; }\nlet f = '\"'; struct G;\n// place \"\nlet text = \"\\\"place // x\";\nstruct \
        H;\nlet raw = r#\"place \"struct\"\"#;\n#[cfg(test)]\nmod tests {\nstruct I;\n}",
    );
    assert_eq!(type_names(&text), ["A", "B", "C", "D", "H"]);
    assert!(!says_place(&text), "{text}");
    for (code, expected) in [
        ("let place = 1;", true),
        ("let near_places = 1;", true),
        ("struct Place;", true),
        ("places_of[1]", true),
        ("let text = text.replace(1, 2);", false),
        ("struct Placement;", false),
    ] {
        assert_eq!(says_place(code), expected, "{code}");
    }
    for (name, expected) in [
        ("HeldRequest", true),
        ("Seed", true),
        ("Ring", true),
        ("Held", false),
        ("WriteFailed", false),
        ("Refused", false),
        ("Waiting", false),
    ] {
        assert_eq!(is_noun(name), expected, "{name}");
    }
}

/// The files in which something is found, by the crate and what it is.
fn files_by(find: impl for<'a> Fn(&'a str) -> Vec<&'a str>) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for own in CRATES {
        for (file, text) in sources(own) {
            for name in find(&text) {
                let files = found.entry(format!("{own} {name}")).or_default();
                files.push(file.clone());
            }
        }
    }
    found
}

/// The files of a crate that are compiled for users, each with its code.
fn sources(own: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(own)
        .join("src");
    let sources = files(&folder).into_iter().map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(&folder).unwrap().to_str().unwrap();
        (file.replace('\\', "/"), code(&text))
    });
    let sources = sources.filter(|(file, _)| !TEST_FILES.contains(&file.as_str()));
    sources.collect()
}

/// The text without comments, strings, and unit tests, which stand at the end.
fn code(text: &str) -> String {
    let mut rest = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let mut code = String::new();
    while let Some(start) = rest.find("//").into_iter().chain(rest.find('"')).min() {
        let before = &rest[..start];
        code.push_str(before);
        rest = &rest[start..];
        rest = if rest.starts_with("//") {
            rest.find('\n').map_or("", |end| &rest[end..])
        } else if before.ends_with('\'') {
            // A quote as a character.
            &rest[1..]
        } else {
            after_string(before, &rest[1..])
        };
    }
    code + rest
}

/// What follows a string, which begins with `rest`.
fn after_string<'a>(before: &str, rest: &'a str) -> &'a str {
    let start = before.trim_end_matches('#');
    if start.ends_with('r') {
        let end = format!("\"{}", &before[start.len()..]);
        return rest.split_once(&end).map_or("", |(_, after)| after);
    }
    let mut is_escaped = false;
    let end = rest.find(|char| {
        let is_end = char == '"' && !is_escaped;
        is_escaped = char == '\\' && !is_escaped;
        is_end
    });
    end.map_or("", |end| &rest[end + 1..])
}

/// The types that lines of code define, without those that belong to another one.
fn type_names(code: &str) -> Vec<&str> {
    let names = code.lines().filter_map(|line| {
        let item = line.trim_start();
        let item = match item.strip_prefix("pub") {
            Some(item) if item.starts_with('(') => item.split_once(") ")?.1,
            Some(item) => item.trim_start(),
            None => item,
        };
        let (kind, rest) = item.split_once(' ')?;
        let is_type = match kind {
            "struct" | "enum" | "union" | "trait" => true,
            "type" => !line.starts_with(' '),
            _ => false,
        };
        let end = rest.find(|char: char| !char.is_alphanumeric());
        let name = &rest[..end.unwrap_or(rest.len())];
        (is_type && name.starts_with(char::is_uppercase)).then_some(name)
    });
    names.collect()
}

fn is_noun(name: &str) -> bool {
    let last = name
        .rfind(char::is_uppercase)
        .map_or(name, |start| &name[start..]);
    if NOUNS.contains(&last) || PUBLIC.contains(&name) {
        return true;
    }
    // A feed, a seed and a need are nouns.
    let has_ending = last.ends_with("ing") || last.ends_with("ed") && !last.ends_with("eed");
    !has_ending && !PARTICIPLES.contains(&last)
}

fn says_place(code: &str) -> bool {
    let words = code.split(|char: char| !char.is_alphanumeric() && char != '_');
    words.flat_map(|word| word.split('_')).any(|word| {
        let word = word.to_lowercase();
        word == "place" || word == "places"
    })
}
