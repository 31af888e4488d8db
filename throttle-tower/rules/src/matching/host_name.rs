//! The spellings of a host: one name for all of them.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// The longest name that DNS knows.
pub(super) const MAX_LENGTH: usize = 253;

/// `[::1]:80` is `[::1]`. Some servers ignore whatever follows the colon, so that it need not be a
/// port.
pub(super) fn without_port(host: &[u8]) -> &[u8] {
    let host = host.trim_ascii();
    let end = match host.first() {
        Some(b'[') => host.iter().position(|b| *b == b']').map(|last| last + 1),
        _ => host.iter().position(|b| *b == b':'),
    };
    end.map_or(host, |end| &host[..end])
}

/// In lower case, without final dots; an IPv6 address in its usual spelling.
pub(super) fn normalized(host: &[u8]) -> Cow<'_, [u8]> {
    if let Some(address) = ipv6(host) {
        return address.into_bytes().into();
    }
    let last = host.iter().rposition(|b| *b != b'.');
    let host = &host[..last.map_or(0, |last| last + 1)];
    match host.iter().any(u8::is_ascii_uppercase) {
        true => host.to_ascii_lowercase().into(),
        false => host.into(),
    }
}

/// The address in brackets, each address in one spelling.
pub(super) fn ipv6(host: &[u8]) -> Option<String> {
    let address = std::str::from_utf8(host.strip_prefix(b"[")?.strip_suffix(b"]")?).ok()?;
    Some(format!("[{}]", address.parse::<Ipv6Addr>().ok()?))
}
