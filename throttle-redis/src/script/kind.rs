//! The table of algorithms: their Lua, and how their values are laid out.

use throttle_core::Algorithm;

use super::parts;

/// An algorithm's text, and how its values are laid out.
pub(crate) struct Kind {
    pub(super) name: &'static str,
    /// The first byte of its tag.
    pub(super) letter: char,
    /// The format of its parameters.
    pub(super) format: &'static str,
    pub(super) has_variants: bool,
    pub(super) size: Size,
    /// What the numbers of a state are called; the last `repeated` of them occur any number of
    /// times.
    fields: &'static [&'static str],
    repeated: usize,
    text: &'static str,
}

/// How large a state is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Bytes(usize),
    /// A number for each sub-window of the parameters.
    Ring,
    /// Two numbers for each run of admitted requests.
    Log,
}

macro_rules! kinds {
    ($($name:literal $letter:literal in $file:literal, $format:literal, variants $variants:literal, $size:expr,
       $fields:expr, repeated $repeated:literal;)*) => {
        /// Every algorithm. A new one is a row here and a file there.
        pub(super) const ALL: &[Kind] = &[$(Kind {
            name: $name,
            letter: $letter,
            format: $format,
            has_variants: $variants,
            size: $size,
            fields: &$fields,
            repeated: $repeated,
            text: include_str!(concat!("../lua/", $file, ".lua")),
        }),*];
    };
}

kinds! {
    "gcra" 'g' in "gcra", "<ddd", variants false, Size::Bytes(16), ["arrival", "arrival_part"], repeated 0;
    "token_bucket" 't' in "level", "<ddd", variants false, Size::Bytes(16), ["last", "grains_left"], repeated 0;
    "leaky_meter" 'm' in "level", "<ddd", variants false, Size::Bytes(16), ["last", "grains_owed"], repeated 0;
    "leaky_bucket" 'q' in "leaky_bucket", "<ddd", variants true, Size::Bytes(24), ["last", "next_slot", "next_slot_part"], repeated 0;
    "interval_bucket" 'i' in "interval_bucket", "<ddd", variants true, Size::Bytes(16), ["interval_start", "tokens"], repeated 0;
    "fixed_window" 'f' in "fixed_window", "<ddd", variants false, Size::Bytes(16), ["window_start", "used"], repeated 0;
    "calendar_quota" 'c' in "calendar_quota", "<dd", variants true, Size::Bytes(16), ["window_start", "used"], repeated 0;
    "sliding_window" 's' in "sliding_window", "<ddd", variants false, Size::Ring, ["last", "used"], repeated 1;
    "sliding_log" 'l' in "sliding_log", "<dd", variants false, Size::Log, ["used", "at", "units"], repeated 2;
}

impl Kind {
    pub(crate) fn of(algorithm: &Algorithm) -> &'static Self {
        let kind = ALL.iter().find(|kind| kind.name == algorithm.name());
        kind.expect("every algorithm has a row in the table of kinds")
    }

    /// The numbers of the state at the end of a value, by name. None if no algorithm wrote the
    /// value.
    pub(crate) fn numbers(value: &[u8]) -> Vec<(&'static str, i64)> {
        let wrote = |kind: &&Self| {
            value
                .first()
                .is_some_and(|letter| char::from(*letter) == kind.letter)
        };
        let Some(kind) = ALL.iter().find(wrote) else {
            return Vec::new();
        };
        let repeated = &kind.fields[kind.fields.len() - kind.repeated..];
        let names = kind.fields.iter().chain(repeated.iter().cycle());
        let numbers = value
            .get(kind.header()..)
            .unwrap_or_default()
            .as_chunks()
            .0
            .iter();
        numbers
            .zip(names)
            .map(|(number, name)| (*name, f64::from_le_bytes(*number) as i64))
            .collect()
    }

    /// Whether the script replies with less than the value, as much as one cost needs.
    pub(crate) fn is_shortened(&self) -> bool {
        self.part("tell").is_some()
    }

    /// Lua that is true if a value has the wrong length. `more` is the suffix of the value's
    /// variables. An error in place of a value has no length.
    pub(super) fn misfit(&self, more: &str) -> String {
        match self.size {
            Size::Log => format!("(#value{more} - at{more}) % 16 ~= 7"),
            Size::Ring => format!("#value{more} ~= at{more} + 8 * c{more} + 15"),
            Size::Bytes(size) => format!("#value{more} ~= at{more} + {}", size - 1),
        }
    }

    /// Bytes of the header, which is the tag.
    pub(super) fn header(&self) -> usize {
        2 + 8 * (self.format.len() - 1)
    }

    /// A part of its text. A token bucket keeps what is left of its depth, and the meter, which has
    /// the same text, what is owed.
    pub(super) fn part(&self, name: &str) -> Option<String> {
        let from_depth = match self.name {
            "token_bucket" => "depth - ",
            _ => "",
        };
        let text = parts::part(self.text, name)?.replace("@name@", self.name);
        Some(text.replace("@from_depth@", from_depth))
    }
}
