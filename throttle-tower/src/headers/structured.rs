//! Reads structured fields (RFC 9651): lists, Dictionaries and numbers.

use http::{HeaderMap, HeaderName};
use smallvec::SmallVec;

use super::scanner::{Count, Scanner};

/// Reads one line as a list of Strings, and returns the counts that some parameters of each have.
/// If a key occurs twice, the last counts. `None` if the line is anything else, down to its last
/// byte.
///
/// A list with a member that is not a String is rejected too: it belongs to an older dialect. A
/// client that expects names ignores such a header as malformed.
pub(super) fn list_counts<const N: usize>(
    line: &[u8],
    keys: [&[u8]; N],
) -> Option<SmallVec<[[Count; N]; 4]>> {
    let mut lists = SmallVec::new();
    read_members(line, |scanner| {
        let mut counts = [None; N];
        scanner.string()?;
        scanner.parameters(|key, count| note(&mut counts, keys, key, count))?;
        lists.push(counts);
        Some(())
    })?;
    Some(lists)
}

/// Reads all lines of a header as one Dictionary of Items, and returns the counts that some of its
/// keys have. If a key occurs twice, the last counts. The headers read here contain no inner lists.
/// `None` if a line is anything else.
pub(super) fn dictionary_counts<const N: usize>(
    headers: &HeaderMap,
    name: &HeaderName,
    keys: [&[u8]; N],
) -> Option<[Count; N]> {
    let mut counts = [None; N];
    for line in headers.get_all(name) {
        read_members(line.as_bytes(), |scanner| {
            let key = scanner.key()?;
            let count = scanner.assigned()?;
            note(&mut counts, keys, key, count);
            scanner.parameters(|_, _| {})
        })?;
    }
    Some(counts)
}

fn note<const N: usize>(counts: &mut [Count; N], keys: [&[u8]; N], key: &[u8], count: Count) {
    if let Some(index) = keys.iter().position(|known| *known == key) {
        counts[index] = count;
    }
}

fn read_members<'a>(
    line: &'a [u8],
    mut read: impl FnMut(&mut Scanner<'a>) -> Option<()>,
) -> Option<()> {
    let mut scanner = Scanner::new(line);
    scanner.skip_spaces();
    loop {
        read(&mut scanner)?;
        if !scanner.next_member()? {
            return Some(());
        }
    }
}

/// The value of a header that is a single non-negative Integer, whose parameters are ignored.
pub(super) fn single_count(line: &[u8]) -> Count {
    let mut scanner = Scanner::new(line);
    scanner.skip_spaces();
    let count = scanner.bare_item()?;
    scanner.parameters(|_, _| {})?;
    scanner.skip_spaces();
    count.filter(|_| scanner.is_done())
}

/// The value of a header that is a single number without a sign, as text. Other than an Integer it
/// may be of any length and have a fraction, as upstreams write it. `each` gets its parameters.
pub(super) fn single_number<'a>(
    line: &'a [u8],
    each: impl FnMut(&'a [u8], Count),
) -> Option<&'a [u8]> {
    let line = line.trim_ascii();
    let is_digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let end = line.iter().position(|byte| !is_digit(byte));
    let (number, rest) = line.split_at(end.unwrap_or(line.len()));
    let mut scanner = Scanner::new(rest);
    scanner.parameters(each)?;
    (scanner.is_done() && number.iter().any(u8::is_ascii_digit)).then_some(number)
}
