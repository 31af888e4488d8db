//! The texts that scripts are assembled from.

pub(super) const ONE_REQUEST: &str = include_str!("../lua/one_request.lua");
pub(super) const BATCH: &str = include_str!("../lua/batch.lua");
pub(super) const CELLS: &str = include_str!("../lua/cells.lua");
pub(super) const ANY_SET: &str = include_str!("../lua/any_set.lua");
pub(super) const EXCEPT: &str = include_str!("../lua/except.lua");
pub(super) const EXCEPTIONS: &str = include_str!("../lua/exceptions.lua");
pub(super) const SETTLE: &str = include_str!("../lua/settle.lua");

/// The text between `-- part: name` and the next such line.
pub(super) fn part(text: &'static str, name: &str) -> Option<&'static str> {
    let marker = format!("-- part: {name}\n");
    let (_, rest) = text.split_once(&marker)?;
    Some(rest.split_once("-- part: ").map_or(rest, |(part, _)| part))
}

/// Local names for functions that are used often: a local is faster to read than a field of a
/// global.
const NAMES: &[(&str, &str)] = &[
    ("call", "redis.call"),
    ("pcall", "redis.pcall"),
    ("protected", "_G.pcall"),
    ("pack", "struct.pack"),
    ("unpack", "struct.unpack"),
    ("floor", "math.floor"),
    ("ceil", "math.ceil"),
    ("min", "math.min"),
    ("max", "math.max"),
    ("sub", "string.sub"),
    ("rep", "string.rep"),
    ("concat", "table.concat"),
];

const TIME: &str = include_str!("../lua/time.lua");

/// The whole text without its comments: the time, then each body after the names that it is the
/// first to use.
pub(super) fn with_names(bodies: &[&str]) -> String {
    let mut text = String::new();
    let mut named = Vec::new();
    for body in [TIME].iter().chain(bodies) {
        let body: String = body
            .lines()
            .filter(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty())
            .flat_map(|line| [line, "\n"])
            .collect();
        let uses = |name: &str| {
            body.match_indices(name)
                .any(|(at, _)| is_word(&body, at, name.len()))
        };
        let new = |name: &str| !named.contains(&name) && uses(name);
        let (names, values): (Vec<&str>, Vec<&str>) =
            NAMES.iter().copied().filter(|(name, _)| new(name)).unzip();
        if !names.is_empty() {
            text += &format!("local {} = {}\n", names.join(", "), values.join(", "));
        }
        named.extend(names);
        text += &body;
    }
    text
}

fn is_word(text: &str, at: usize, len: usize) -> bool {
    let part_of_name =
        |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || b"_.'".contains(b));
    let bytes = text.as_bytes();
    let before = at.checked_sub(1).and_then(|before| bytes.get(before));
    !part_of_name(before)
        && !bytes
            .get(at + len)
            .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
}
