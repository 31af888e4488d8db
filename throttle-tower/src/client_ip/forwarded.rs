//! `Forwarded` (RFC 7239): its elements from right to left, and the client that one element names.
//!
//! Right to left is a matter of safety. The rightmost element is a trusted proxy's own and well
//! formed. The client wrote what precedes it, and an open quote in there would swallow the rest of
//! the line for a reader that starts on the left.

use std::net::Ipv4Addr;

use smallvec::SmallVec;

use super::address_origin::AddressOrigin;
use super::address_text::{EntryAddress, MAX_ENTRY, ascii, bracketed, is_port};

/// Longest element worth reading, in bytes. A proxy's own takes some hundred, most of them the
/// host's.
pub(super) const MAX_ELEMENT: usize = 1024;

/// The elements of one `Forwarded` line, nearest hop first. A comma inside a quoted string does not
/// separate.
///
/// The separator of an element longer than [`MAX_ELEMENT`] is not looked for: everything to its
/// left is part of that element, which is malformed for its length.
pub(super) fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let comma = last_comma(line);
        rest = comma.map(|at| &line[..at]);
        Some(comma.map_or(line, |at| &line[at + 1..]))
    })
}

/// The last comma outside of a quoted string, no further left than an element may be long.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for at in (line.len().saturating_sub(MAX_ELEMENT + 1)..line.len()).rev() {
        match line[at] {
            // Read from the right, a quote outside of a string ends one, and inside it starts the
            // string unless it is escaped. One backslash before it decides: a string starts after
            // `=`, so an unescaped one has none. A line that breaks this rule has no right split,
            // and the strict reader judges the pieces.
            b'"' => quoted = !quoted || line[..at].ends_with(b"\\"),
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Reads one trimmed element: `name=value` pairs separated by `;`, no whitespace between, of which
/// one is `for`.
///
/// The whole element must be well formed, not only its `for`. Otherwise a proxy did not write it,
/// or it was split at the wrong comma.
pub(super) fn read(element: &[u8]) -> EntryAddress {
    let bounded = (element.len() <= MAX_ELEMENT).then_some(element);
    let named = bounded.and_then(client);
    named.unwrap_or(Err(AddressOrigin::Malformed))
}

fn client(mut rest: &[u8]) -> Option<EntryAddress> {
    let mut named = None;
    let mut seen = [false; 4];
    loop {
        // The grammar allows an empty pair, as in a trailing `;`.
        if !matches!(rest.first(), None | Some(b';')) {
            let (name, value, after) = pair(rest)?;
            // Only the registered parameters must occur once: remembering unknown names would take
            // memory.
            if let Some(at) = ["for", "by", "host", "proto"]
                .iter()
                .position(|p| name.eq_ignore_ascii_case(p.as_bytes()))
            {
                if std::mem::replace(&mut seen[at], true) {
                    return None;
                }
                if at == 0 {
                    named = Some(value);
                }
            }
            rest = after;
        }
        match rest.split_first() {
            None => return unescaped(named?),
            Some((b';', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// Splits `name=value` off the front. A value that is quoted is still escaped.
fn pair(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, after) = token(text)?;
    let after = after.strip_prefix(b"=")?;
    let (value, after) = if let Some(inner) = after.strip_prefix(b"\"") {
        quoted(inner)?
    } else {
        token(after)?
    };
    Some((name, value, after))
}

/// Splits a token (RFC 9110, section 5.6.2) off the front. It has at least one character.
fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let end = text
        .iter()
        .position(|byte| !is_token(byte))
        .unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Splits the inside of a quoted string (RFC 9110, section 5.6.4), its opening quote gone, from
/// what follows it.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some((&text[..at], &text[at + 1..])),
            b'\\' if is_text(*text.get(at + 1)?) => at += 2,
            byte if is_text(*byte) => at += 1,
            _ => return None,
        }
    }
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// Reads the value of a `for`. A token has no backslashes, and an address that is quoted rarely has
/// one.
fn unescaped(value: &[u8]) -> Option<EntryAddress> {
    if !value.contains(&b'\\') {
        return node(value);
    }
    // Inline, as long as it is no longer than an address.
    let (mut text, mut bytes) = (SmallVec::<[u8; 96]>::new(), value.iter());
    while let Some(&byte) = bytes.next() {
        text.push(if byte == b'\\' { *bytes.next()? } else { byte });
        // An address is no longer.
        if text.len() == MAX_ENTRY && !bytes.as_slice().is_empty() {
            return None;
        }
    }
    node(&text)
}

/// Reads a node (RFC 7239, section 6): IPv4, bracketed IPv6, `unknown` or `_name`, each with or
/// without a port.
fn node(node: &[u8]) -> Option<EntryAddress> {
    if node.starts_with(b"[") {
        let (address, port) = bracketed(ascii(node)?.strip_prefix('[')?)?;
        return port.is_none_or(is_node_port).then_some(Ok(address));
    }
    let mut parts = node.splitn(2, |&byte| byte == b':');
    let name = parts.next()?;
    if !parts
        .next()
        .is_none_or(|port| std::str::from_utf8(port).is_ok_and(is_node_port))
    {
        return None;
    }
    if name.eq_ignore_ascii_case(b"unknown") || is_obfuscated(name) {
        return Some(Err(AddressOrigin::Obfuscated));
    }
    let address: Ipv4Addr = ascii(name)?.parse().ok()?;
    Some(Ok(address.into()))
}

fn is_node_port(port: &str) -> bool {
    is_port(port) || is_obfuscated(port.as_bytes())
}

fn is_obfuscated(name: &[u8]) -> bool {
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    matches!(name, [b'_', rest @ ..] if !rest.is_empty() && rest.iter().all(legal))
}
