//! Lists of named members, as `RateLimit` and `RateLimit-Policy` are since draft -08: written, read and joined.

use http::HeaderValue;
use smallvec::SmallVec;

use super::scanner::{Bare, Scanner};
use super::value_text::Text;

/// Writes a String. Names and units are printable ASCII since they were configured.
pub(super) fn string(text: &mut Text, string: &str) {
    text.byte(b'"');
    // Names seldom have anything to escape, so they are copied whole.
    if !string.bytes().any(|byte| matches!(byte, b'"' | b'\\')) {
        text.bytes(string.as_bytes()).byte(b'"');
        return;
    }
    for piece in string.as_bytes().split_inclusive(|byte| matches!(byte, b'"' | b'\\')) {
        match piece.split_last() {
            Some((special @ (b'"' | b'\\'), plain)) => text.bytes(plain).byte(b'\\').byte(*special),
            _ => text.bytes(piece),
        };
    }
    text.byte(b'"');
}

/// One member of a list: a String that names a policy, and its parameters.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    /// The whole member as it stands.
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

/// Reads one field line as a list of named members; `None` if it is anything else, down to its last byte.
///
/// A list with a member that is no String is refused too: it belongs to an older dialect, and a client that wants names
/// must ignore the field as malformed, ours with it.
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
        members.push(Member { text: scanner.between(start, end), name, parameters: scanner.between(named, end) });
        if !scanner.next_member()? {
            return Some(members);
        }
    }
}

/// The value of a field that is a single non-negative Integer, whose parameters mean nothing.
pub(super) fn single_count(line: &[u8]) -> Option<u64> {
    let mut scanner = Scanner::new(line);
    scanner.skip_spaces();
    let value = scanner.bare_item()?;
    scanner.parameters(|_, _| {})?;
    scanner.skip_spaces();
    if scanner.is_done() { value.count() } else { None }
}

/// Reads one field line as a Dictionary of Items. Inner lists have no place in the fields read here.
pub(super) fn dictionary(line: &[u8], mut each: impl FnMut(&[u8], Bare)) -> Option<()> {
    let mut scanner = Scanner::new(line);
    scanner.skip_spaces();
    loop {
        let key = scanner.key()?;
        let value = scanner.assigned()?;
        scanner.parameters(|_, _| {})?;
        each(key, value);
        if !scanner.next_member()? {
            return Some(());
        }
    }
}

/// Joins the lines that a response already has with a list of ours into one value.
///
/// Theirs keep their order and wording and stand before ours. Where a name occurs on both sides one side goes:
/// `stands(theirs, ours)` says whether theirs is at least as strict. Theirs may use a name more than once, telling the
/// uses apart by partition key; then ours stays only if it is stricter than each of them.
///
/// A line that does not parse is left out. As it stands it makes clients ignore the whole field, the good lines
/// included, so nothing readable is lost.
///
/// It is one value, not a further line, because many clients read only the first line of a field.
pub(super) fn join<'a>(
    theirs: impl Iterator<Item = &'a [u8]>,
    ours: &'a [u8],
    stands: impl Fn(&Member<'_>, &Member<'_>) -> bool,
) -> Option<HeaderValue> {
    let mut theirs: Members<'a> = theirs.filter_map(list).flatten().collect();
    let mut ours = list(ours)?;
    ours.retain(|our| !theirs.iter().any(|their| their.name == our.name && stands(their, our)));
    theirs.retain(|their| !ours.iter().any(|our| our.name == their.name));

    let mut text = Text::new();
    for member in theirs.iter().chain(&ours) {
        text.next_member().bytes(member.text);
    }
    text.value()
}
