//! Lists of named members, the syntax of `RateLimit` and `RateLimit-Policy` since draft -08:
//! written, read and joined.

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::scanner::{Bare, Scanner};
use super::value_text::Text;

/// Writes a String. Names and units are printable ASCII, which was checked when they were
/// configured.
pub(super) fn string(text: &mut Text, string: &str) {
    text.byte(b'"');
    // Names rarely have anything to escape, so they are copied whole.
    if !string.bytes().any(|byte| matches!(byte, b'"' | b'\\')) {
        text.bytes(string.as_bytes()).byte(b'"');
        return;
    }
    for piece in string
        .as_bytes()
        .split_inclusive(|byte| matches!(byte, b'"' | b'\\'))
    {
        match piece.split_last() {
            Some((special @ (b'"' | b'\\'), plain)) => text.bytes(plain).byte(b'\\').byte(*special),
            _ => text.bytes(piece),
        };
    }
    text.byte(b'"');
}

/// A name as [`string`] writes it.
pub(crate) fn quoted(name: &str) -> Box<[u8]> {
    let mut text = Text::new();
    string(&mut text, name);
    text.as_bytes().into()
}

/// One member of a list: a String that names a policy, and its parameters.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    /// The whole member as it was written.
    text: &'a [u8],
    /// Its String, still escaped.
    name: &'a [u8],
    parameters: &'a [u8],
}

impl Member<'_> {
    /// A parameter that must be a non-negative Integer. Of two with one key the last counts.
    pub(super) fn count(&self, key: &[u8]) -> Option<u64> {
        let mut found = None;
        Scanner::new(self.parameters).parameters(|k, value| {
            if k == key {
                found = Some(value);
            }
        })?;
        found.and_then(Bare::count)
    }
}

pub(super) type Members<'a> = SmallVec<[Member<'a>; 4]>;

/// Reads one header line as a list of named members; `None` if it is anything else, down to its
/// last byte.
///
/// A list with a member that is not a String is rejected too: it belongs to an older dialect. A
/// client that expects names ignores such a header as malformed, and our members with it.
pub(super) fn list(line: &[u8]) -> Option<Members<'_>> {
    let mut scanner = Scanner::new(line);
    let mut members = Members::new();
    scanner.skip_spaces();
    loop {
        let start = scanner.position();
        let name = scanner.string()?;
        let named = scanner.position();
        scanner.parameters(|_, _| {})?;
        let end = scanner.position();
        members.push(Member {
            text: scanner.between(start, end),
            name,
            parameters: scanner.between(named, end),
        });
        if !scanner.next_member()? {
            return Some(members);
        }
    }
}

/// The value of a header that is a single non-negative Integer, whose parameters are ignored.
pub(super) fn single_count(line: &[u8]) -> Option<u64> {
    let mut scanner = Scanner::new(line);
    scanner.skip_spaces();
    let value = scanner.bare_item()?;
    scanner.parameters(|_, _| {})?;
    scanner.skip_spaces();
    if scanner.is_done() {
        value.count()
    } else {
        None
    }
}

/// The value of a header that is a single number without a sign, as text. Other than an Integer it
/// may be of any length and have a fraction, as upstreams write it. `each` gets its parameters.
pub(super) fn single_number<'a>(
    line: &'a [u8],
    each: impl FnMut(&'a [u8], Bare),
) -> Option<&'a [u8]> {
    let line = line.trim_ascii();
    let is_digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, rest) = line.split_at(
        line.iter()
            .position(|byte| !is_digit(byte))
            .unwrap_or(line.len()),
    );
    let mut scanner = Scanner::new(rest);
    scanner.parameters(each)?;
    (scanner.is_done() && number.iter().any(u8::is_ascii_digit)).then_some(number)
}

/// Reads all lines of a header as one Dictionary of Items, and returns the counts that some of its
/// keys have: of two with one key the last. The headers read here contain no inner lists. `None` if
/// a line is anything else.
pub(super) fn dictionary_counts<const N: usize>(
    headers: &HeaderMap,
    name: &HeaderName,
    keys: [&[u8]; N],
) -> Option<[Option<u64>; N]> {
    let mut counts = [None; N];
    for line in headers.get_all(name) {
        let mut scanner = Scanner::new(line.as_bytes());
        scanner.skip_spaces();
        loop {
            let place = scanner
                .key()
                .map(|key| keys.iter().position(|known| *known == key))?;
            let value = scanner.assigned()?;
            scanner.parameters(|_, _| {})?;
            if let Some(place) = place {
                counts[place] = value.count();
            }
            if !scanner.next_member()? {
                break;
            }
        }
    }
    Some(counts)
}

/// Joins the existing lines of a response with our list into one value.
///
/// Existing members keep their order and wording and precede ours. If a name occurs on both sides,
/// one side is dropped: `stands(theirs, ours)` says whether the existing member is at least as
/// strict. Existing members may use a name more than once and distinguish the uses by partition
/// key; then ours stays only if it is stricter than each of them.
///
/// A line that does not parse is dropped. Clients would ignore the whole header because of it, the
/// good lines included, so nothing readable is lost.
///
/// The result is one value, not a further line, because many clients read only the first line of a
/// header.
pub(super) fn join<'a>(
    theirs: impl Iterator<Item = &'a [u8]>,
    ours: &'a [u8],
    stands: impl Fn(&Member<'_>, &Member<'_>) -> bool,
) -> Option<HeaderValue> {
    let mut theirs: Members<'a> = theirs.filter_map(list).flatten().collect();
    let mut ours = list(ours)?;
    ours.retain(|our| {
        !theirs
            .iter()
            .any(|their| their.name == our.name && stands(their, our))
    });
    theirs.retain(|their| !ours.iter().any(|our| our.name == their.name));

    let mut text = Text::new();
    for member in theirs.iter().chain(&ours) {
        text.next_member().bytes(member.text);
    }
    text.value()
}
