//! The texts that scripts are assembled from.

use throttle_core::Algorithm;

pub(super) const ONE_REQUEST: &str = include_str!("../lua/one_request.lua");
pub(super) const ONE_POLICY: &str = include_str!("../lua/one_policy.lua");
pub(super) const CELLS: &str = include_str!("../lua/cells.lua");
pub(super) const ANY_SET: &str = include_str!("../lua/any_set.lua");
pub(super) const SETTLE: &str = include_str!("../lua/settle.lua");

/// An algorithm's text, and how its values are laid out.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The first byte of its tag.
    pub(super) letter: char,
    /// The format of its parameters.
    pub(super) format: &'static str,
    pub(super) has_variants: bool,
    /// Bytes of a payload; 0 for a log, 1 for a ring.
    pub(super) size: usize,
    text: &'static str,
}

macro_rules! kinds {
    ($($name:literal $letter:literal, $format:literal, variants $variants:literal, size $size:literal;)*) => {
        /// Every algorithm. A new one is a row here and a file there.
        pub(super) const ALL: &[Kind] = &[$(Kind {
            name: $name,
            letter: $letter,
            format: $format,
            has_variants: $variants,
            size: $size,
            text: include_str!(concat!("../lua/", $name, ".lua")),
        }),*];
    };
}

kinds! {
    "gcra" 'g', "<ddd", variants false, size 16;
    "token_bucket" 't', "<ddd", variants false, size 16;
    "leaky_meter" 'm', "<ddd", variants false, size 16;
    "leaky_bucket" 'q', "<ddd", variants true, size 24;
    "interval_bucket" 'i', "<ddd", variants true, size 16;
    "fixed_window" 'f', "<ddd", variants false, size 16;
    "calendar_quota" 'c', "<dd", variants true, size 16;
    "sliding_window" 's', "<ddd", variants false, size 1;
    "sliding_log" 'l', "<dd", variants false, size 0;
}

impl Kind {
    pub(super) fn of(algorithm: &Algorithm) -> &'static Self {
        let kind = ALL.iter().find(|kind| kind.name == algorithm.name());
        kind.expect("every algorithm has a row in the table of kinds")
    }

    /// Lua that is true if a value has the wrong length. `more` is the suffix of the value's variables. An error in
    /// place of a value has no length.
    pub(super) fn misfit(&self, more: &str) -> String {
        match self.size {
            0 => format!("(#value{more} - at{more}) % 16 ~= 7"),
            1 => format!("#value{more} ~= at{more} + 8 * c{more} + 15"),
            size => format!("#value{more} ~= at{more} + {}", size - 1),
        }
    }

    /// Bytes of the header, which is the tag.
    pub(super) fn header(&self) -> usize {
        2 + 8 * (self.format.len() - 1)
    }

    /// A part of its text.
    pub(super) fn part(&self, name: &str) -> Option<&'static str> {
        part(self.text, name)
    }
}

/// The text between `-- part: name` and the next such line.
pub(super) fn part(text: &'static str, name: &str) -> Option<&'static str> {
    let marker = format!("-- part: {name}\n");
    let (_, rest) = text.split_once(&marker)?;
    Some(rest.split_once("-- part: ").map_or(rest, |(part, _)| part))
}

/// Local names for functions that are used often: a local is faster to read than a field of a global.
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

/// The whole text without its comments: the time, then each body after the names that it is the first to use.
pub(super) fn with_names(bodies: &[&str]) -> String {
    let mut text = String::new();
    let mut named = Vec::new();
    for body in [TIME].iter().chain(bodies) {
        let body: String = body
            .lines()
            .filter(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty())
            .flat_map(|line| [line, "\n"])
            .collect();
        let uses = |name: &str| body.match_indices(name).any(|(at, _)| is_word(&body, at, name.len()));
        let new = |name: &str| !named.contains(&name) && uses(name);
        let (names, values): (Vec<&str>, Vec<&str>) = NAMES.iter().copied().filter(|(name, _)| new(name)).unzip();
        if !names.is_empty() {
            text += &format!("local {} = {}\n", names.join(", "), values.join(", "));
        }
        named.extend(names);
        text += &body;
    }
    text
}

fn is_word(text: &str, at: usize, len: usize) -> bool {
    let part_of_name = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || b"_.'".contains(b));
    let bytes = text.as_bytes();
    let before = at.checked_sub(1).and_then(|before| bytes.get(before));
    !part_of_name(before) && !bytes.get(at + len).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
}
