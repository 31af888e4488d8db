//! Compares how `Rate`, a rule file and the Python package `limits`, whose notation Flask and FastAPI programs use, read
//! a text: they find the same rate, or none of them finds one, or the difference is intended and listed here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::{env, io, thread};

use throttle_tower::limit::IntoLimitTree;
use throttle_tower::rules::{Registry, Rules};
use throttle_tower::{Constant, FixedWindow, Rate, limit};

/// A count, and a period in microseconds.
type Meaning = (u128, u128);

/// A difference that goes away when the text is written in another way, with which both mean the same.
struct Rewrite {
    name: &'static str,
    rewrite: fn(&str) -> String,
}

/// What `limits` reads and `Rate` refuses, although it means something.
const REWRITES: [Rewrite; 4] = [
    // A unit is a name like any other in a rule file, and those are in lower case.
    Rewrite { name: "letters of another case", rewrite: str::to_lowercase },
    // `Rate` knows `per` as a word between spaces.
    Rewrite { name: "per without spaces", rewrite: |text| text.replacen("per", "/", 1) },
    // `limits` reads "5 per 0 hours" as "5 per hour". More likely the zero is a mistake.
    Rewrite { name: "zero periods", rewrite: without_zero_periods },
    // Python takes the separators of files and records for blanks; Unicode does not.
    Rewrite { name: "separators of files as blanks", rewrite: |text| text.replace(is_file_separator, " ") },
];

fn is_file_separator(c: char) -> bool {
    matches!(c, '\u{1c}'..='\u{1f}')
}

fn without_zero_periods(text: &str) -> String {
    let end_of_zeros = text.rfind('0').map_or(0, |place| place + 1);
    let start = text[..end_of_zeros].trim_end_matches('0').len();
    let is_whole_number = !text[..start].ends_with(|c: char| c.is_ascii_digit());
    let is_period = text[..start].contains(['/', 'p', 'P']);
    if is_whole_number && is_period { format!("{}{}", &text[..start], &text[end_of_zeros..]) } else { text.to_owned() }
}

/// Short names, which `limits` does not know, and how many microseconds they are; with what is long for them there.
const SHORT: [(&[&str], &str, u128); 6] = [
    (&["us", "µs", "microsecond", "microseconds"], "seconds", 1),
    (&["ms", "millisecond", "milliseconds"], "seconds", 1_000),
    (&["s", "sec", "secs"], "seconds", 1_000_000),
    (&["m", "min", "mins"], "minutes", 60_000_000),
    (&["h", "hr"], "hours", 3_600_000_000),
    (&["d"], "days", 86_400_000_000),
];

/// The text with a long name for the unit, and by how much its period is then too long.
fn in_long_names(text: &str) -> Option<(String, u128)> {
    let text = text.trim_end();
    let start = text.trim_end_matches(|c: char| c.is_alphabetic() || c == 'µ').len();
    let (_, long, micros) = SHORT.iter().find(|(names, ..)| names.contains(&&text[start..]))?;
    Some((format!("{}{long}", &text[..start]), 1_000_000_u128.checked_div(*micros).unwrap_or(0).max(1)))
}

/// What a float holds exactly, which is the bound of a count and of a period in microseconds.
const MOST: u128 = (1 << 53) - 1;

fn ours(text: &str) -> Option<Meaning> {
    let rate: Rate = text.parse().ok()?;
    Some((rate.count().into(), rate.period_micros().into()))
}

/// What a text is to `limits`, for all texts at once.
fn theirs(texts: &[String]) -> Vec<Option<Vec<Meaning>>> {
    let python = env::var("THROTTLE_PYTHON").expect("`sh tests/extra.sh` installs `limits`, and names its Python");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rates.py");
    let mut child =
        Command::new(python).arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python");
    let mut input = child.stdin.take().expect("a pipe");
    let texts = serde_json::to_vec(texts).expect("texts");
    let writer = thread::spawn(move || input.write_all(&texts));
    let output = child.wait_with_output().expect("Python");
    writer.join().expect("a thread").expect("a pipe");
    assert!(output.status.success(), "rates.py has failed");
    let said: Vec<Option<Vec<[String; 2]>>> = serde_json::from_slice(&output.stdout).expect("what rates.py says");
    let number = |text: &String| text.parse::<u128>().expect("a number below 2^128");
    let meaning = |[amount, seconds]: &[String; 2]| (number(amount), number(seconds).saturating_mul(1_000_000));
    said.iter().map(|limits| limits.as_ref().map(|limits| limits.iter().map(meaning).collect())).collect()
}

/// Why a text means something else to `limits`; `None` if the difference is not intended.
fn class(text: &str, theirs: Option<&[Meaning]>, long: Option<&[Meaning]>) -> Option<String> {
    let ours = ours(text);
    match (ours, theirs) {
        (None, None) => Some("both refuse".to_owned()),
        (Some(rate), Some([other])) if rate == *other => Some("both read, and mean the same".to_owned()),
        // Each limit is a table of its own in a rule file.
        (None, Some(several @ [_, _, ..])) => {
            let pieces: Vec<&str> = text.split([',', ';', '|']).collect();
            let each = |(piece, one): (&&str, &Meaning)| class(piece.trim_end_matches(':'), Some(&[*one]), None);
            let all_listed =
                pieces.len() == several.len() && pieces.iter().zip(several).all(|both| each(both).is_some());
            all_listed.then(|| "limits only: several in one text".to_owned())
        }
        (None, Some([other])) => refused(text, *other).map(|why| format!("limits only: {why}")),
        (Some((count, micros)), None) => {
            let (_, parts) = in_long_names(text)?;
            let why = if parts > 1 { "parts of a second" } else { "short names of units" };
            (long == Some(&[(count, micros * parts)])).then(|| format!("Rate only: {why}"))
        }
        _ => None,
    }
}

/// Why `Rate` refuses what means this to `limits`.
fn refused(text: &str, meaning: Meaning) -> Option<String> {
    let mut subsets: Vec<u32> = (0..1 << REWRITES.len()).collect();
    // As few rewrites as explain it.
    subsets.sort_by_key(|subset| subset.count_ones());
    subsets.into_iter().find_map(|subset| {
        let chosen = REWRITES.iter().enumerate().filter(|(place, _)| subset >> place & 1 == 1);
        let chosen: Vec<_> = chosen.map(|(_, rewrite)| rewrite).collect();
        let rewritten = chosen.iter().fold(text.to_owned(), |text, rewrite| (rewrite.rewrite)(&text));
        let names: Vec<&str> = chosen.iter().map(|rewrite| rewrite.name).chain(value(&rewritten, meaning)?).collect();
        (!names.is_empty()).then(|| names.join(", "))
    })
}

/// What is wrong with the value rather than with how it is written; nothing if it is the same to `Rate`.
fn value(text: &str, (count, micros): Meaning) -> Option<Option<&'static str>> {
    if ours(text) == Some((count, micros)) {
        return Some(None);
    }
    let why = match () {
        // They could not be counted exactly.
        () if count > MOST || micros > MOST => "numbers above 2^53 - 1",
        // A limit that admits nothing, ever, is more likely a mistake.
        () if count == 0 => "an amount of zero",
        // Neither is a number of seconds. A file says `calendar-quota`, or how many days.
        () if in_days(text) == Some((count, micros)) => "months of 30 days, years of 360",
        () => return None,
    };
    text.parse::<Rate>().is_err().then_some(Some(why))
}

/// What a rate by the month or the year is in days.
fn in_days(text: &str) -> Option<Meaning> {
    let (unit, days) = [("months", 30), ("month", 30), ("years", 360), ("year", 360)]
        .into_iter()
        .find(|(unit, _)| text.to_lowercase().contains(unit))?;
    let (count, micros) = ours(&text.to_lowercase().replace(unit, "days"))?;
    Some((count, micros * days))
}

/// A sequence of numbers that looks random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }

    fn of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }

    /// One of the usual texts, or rarely one of the others.
    fn mostly<'t>(&mut self, usual: &[&'t str], others: &[&'t str]) -> &'t str {
        if self.below(8) > 0 { self.of(usual) } else { self.of(others) }
    }

    fn number(&mut self) -> String {
        match self.below(12) {
            0 => self
                .of(&["0", "00", "0000", "-5", "+5", "1.5", "1_000", "1e3", "0x10", "", "１０", "٣", "१२"])
                .to_owned(),
            1 => (MOST - 2 + self.below(5) as u128).to_string(),
            2 => (0..self.below(30)).map(|_| char::from(b'0' + self.below(10) as u8)).collect(),
            3 => format!("0{}", self.below(100)),
            _ => (1 + self.below(1_000)).to_string(),
        }
    }

    fn single(&mut self) -> String {
        let blank = |random: &mut Self| {
            random.mostly(&["", "", "", " "], &["  ", "\t", "\n", "\r\n", "\u{a0}", "\u{2003}", "\u{1f}", "\u{85}"])
        };
        let mut text = blank(self).to_owned();
        text += &self.number();
        text += blank(self);
        text += self.mostly(
            &["/", "/", " per ", " / "],
            &["per", " PER ", "\tper\t", " Per", "  per  ", "//", ":", " in ", "\u{a0}per\u{a0}", "per ", ""],
        );
        text += blank(self);
        if self.below(3) == 0 {
            text += &self.number();
            text += blank(self);
        }
        let long = ["second", "minute", "hour", "day", "seconds", "minutes", "hours", "days"];
        text += match self.below(12) {
            0 => self.of(&["Second", "MINUTE", "mInutes", "HOURS", "Day", "dAYs"]),
            1 | 2 => self.of(&SHORT.iter().flat_map(|(names, ..)| names.iter().copied()).collect::<Vec<_>>()),
            3 => self.of(&["month", "months", "year", "years", "Month"]),
            4 => self.of(&[
                "week",
                "fortnight",
                "minutess",
                "secondes",
                "hrs",
                "S",
                "M",
                "ſecond",
                "\u{212a}",
                "",
                "per",
            ]),
            _ => self.of(&long),
        };
        text + blank(self)
    }

    fn text(&mut self) -> String {
        let mut text = self.single();
        if self.below(10) == 0 {
            for _ in 0..=self.below(2) {
                text += self.of(&[";", ",", "|", "; ", ":;", ";;", " ", "&"]);
                text += &self.single();
            }
        }
        if self.below(10) == 0 {
            let mut letters: Vec<char> = text.chars().collect();
            for _ in 0..=self.below(3) {
                let place = self.below(letters.len() + 1);
                let end = (place + self.below(2)).min(letters.len());
                let piece = self.of(&["", "0", "5", "/", " ", "s", "per", ";", "m", "\"", "é", "\0", "E", "-", "."]);
                letters.splice(place..end, piece.chars());
            }
            text = letters.into_iter().collect();
        }
        text
    }
}

/// What a rule file with this rate holds, as it is shown; `None` if the file is refused.
fn in_a_file(text: &str) -> Option<String> {
    let mut quoted = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            c if c.is_control() => write!(quoted, "\\u{:04X}", u32::from(c)),
            c => write!(quoted, "{c}"),
        }
        .expect("a text");
    }
    let file = format!(
        "version = 1\n[[limit]]\nname = \"rate\"\nby = \"constant\"\nfixed-window = {{ rate = \"{quoted}\" }}\n"
    );
    Rules::from_str("rate.toml", &file, Registry::new()).ok().map(|rules| format!("{:?}", rules.tree()))
}

fn built(text: &str) -> Option<String> {
    let window = FixedWindow::new(text.parse().ok()?);
    window.build().ok()?;
    Some(format!("{:?}", limit("rate", window).by(Constant).into_limit_tree()))
}

const TEXTS: usize = 100_000;

#[test]
fn rates_mean_the_same_to_us_to_a_file_and_to_limits() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let texts: Vec<String> = (0..TEXTS).map(|_| random.text()).collect();
    let long: Vec<String> =
        texts.iter().map(|text| in_long_names(text).map_or(String::new(), |(text, _)| text)).collect();
    let (said, said_of_long) = (theirs(&texts), theirs(&long));
    assert_eq!((said.len(), said_of_long.len()), (TEXTS, TEXTS));

    let (mut classes, mut unlisted) = (BTreeMap::<String, (usize, &str)>::new(), Vec::new());
    for (text, (theirs, long)) in texts.iter().zip(said.iter().zip(&said_of_long)) {
        match class(text, theirs.as_deref(), long.as_deref()) {
            Some(class) => classes.entry(class).or_insert((0, text)).0 += 1,
            None => unlisted.push(format!("{text:?} is {:?}, and {theirs:?} to limits", ours(text))),
        }
    }
    let mut table = String::from("rates as `limits` reads them:\n");
    for (class, (count, example)) in &classes {
        writeln!(table, "{count:7}  {class}, as in {example:?}").expect("a text");
    }
    // The tests' own output is hidden while they pass.
    io::stderr().write_all(table.as_bytes()).expect("standard error");
    assert!(unlisted.is_empty(), "{} unlisted:\n{}", unlisted.len(), unlisted[..unlisted.len().min(20)].join("\n"));
    let count = |class: &str| classes.get(class).map_or(0, |(count, _)| *count);
    assert!(count("both read, and mean the same") > TEXTS / 4 && count("both refuse") > TEXTS / 10, "{table}");
    for class in ["limits only: several in one text", "Rate only: short names of units", "Rate only: parts of a second"]
    {
        assert!(count(class) > 100, "{class}");
    }
    for Rewrite { name, .. } in &REWRITES {
        assert!(count(&format!("limits only: {name}")) > 10, "{name}");
    }
}

#[test]
fn rate_of_a_file_is_that_of_the_text() {
    assert_ne!(in_a_file("1/s"), in_a_file("2/s"), "what is shown holds the rate");
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut read = 0;
    for _ in 0..TEXTS {
        let text = random.text();
        let built = built(&text);
        assert_eq!(in_a_file(&text), built, "{text:?}");
        read += usize::from(built.is_some());
    }
    assert!(read > TEXTS / 4, "{read}");
}
