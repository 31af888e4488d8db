use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::canonical_ip::embedded_ipv4;

/// Whose budget a request uses: typed parts, encoded so that different parts never share one
/// bucket.
///
/// Every part carries its type and its length, so `("a:b", "c")` and `("a", "b:c")` are different
/// keys, and so are the number 1 and the text "1". Short keys (up to 32 bytes encoded) live inline;
/// longer ones on the heap, shared by clones. `Debug` shows the kinds of the parts and never their
/// content.
///
/// ```
/// use throttle_core::Key;
///
/// let one = Key::builder().text("a:b").text("c").finish();
/// let other = Key::builder().text("a").text("b:c").finish();
/// assert_ne!(one, other);
/// assert_eq!(format!("{one:?}"), "Key(text, text)");
/// ```
#[derive(Clone)]
pub struct Key(KeyBytes);

const INLINE: usize = 32;

/// Aligned, so that a key is written, moved and read in the same whole words. A processor that
/// loads a word which straddles two recent stores waits for both, and that wait took longer than
/// everything else about a key.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Inline([[u8; INLINE / 2]; 2]);

#[derive(Clone)]
enum KeyBytes {
    /// Zeros from `len` on.
    Inline {
        len: u8,
        bytes: Inline,
    },
    Heap(Arc<[u8]>),
}

impl Key {
    /// The key without parts: one budget for all requests.
    pub const CONSTANT: Self = Self(KeyBytes::Inline {
        len: 0,
        bytes: Inline([[0; INLINE / 2]; 2]),
    });

    /// Returns the key that stands for requests without one.
    #[must_use]
    pub fn missing() -> Self {
        Self::builder().missing().finish()
    }

    /// Starts a key of several parts.
    #[inline]
    #[must_use]
    pub const fn builder() -> KeyBuilder {
        KeyBuilder {
            len: 0,
            inline: Inline([[0; INLINE / 2]; 2]),
            heap: Vec::new(),
        }
    }

    /// The encoded parts. They hold what the client sent: do not log or store them raw.
    #[inline]
    #[must_use]
    pub fn expose_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyBytes::Inline { len, bytes } => &bytes.0.as_flattened()[..usize::from(*len)],
            KeyBytes::Heap(bytes) => bytes,
        }
    }

    /// The parts, in order. They hold what the client sent: do not log or store them raw.
    pub fn expose_parts(&self) -> impl Iterator<Item = KeyPart<'_>> {
        Parts(self.expose_bytes())
    }

    /// Returns the key of the first part alone. A key without parts has none.
    ///
    /// ```
    /// use throttle_core::Key;
    ///
    /// let key = Key::builder().text("acme").number(7).finish();
    /// assert_eq!(key.first_part(), Key::from("acme"));
    /// assert_eq!(Key::from("acme").first_part(), Key::from("acme"));
    /// assert_eq!(Key::CONSTANT.first_part(), Key::CONSTANT);
    /// ```
    #[must_use]
    pub fn first_part(&self) -> Self {
        let bytes = self.expose_bytes();
        let mut parts = Parts(bytes);
        parts.next();
        let mut first = Self::builder();
        first.push(&bytes[..bytes.len() - parts.0.len()]);
        first.finish()
    }

    /// A key of at most 15 bytes as one number, with its length, so that no two keys share one.
    #[inline]
    pub(crate) fn as_number(&self) -> Option<u128> {
        match &self.0 {
            KeyBytes::Inline { len, bytes } if *len < 16 => {
                let [low, _] = bytes.0;
                Some(u128::from_le_bytes(low) | u128::from(*len) << 120)
            }
            _ => None,
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.expose_bytes() == other.expose_bytes()
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.expose_bytes().hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_tuple("Key");
        for part in self.expose_parts() {
            parts.field(&format_args!("{}", part.kind()));
        }
        parts.finish()
    }
}

impl From<IpAddr> for Key {
    /// One address, [in canonical form](crate::canonical_ip): as the IPv4 address that it stands
    /// for, if it does.
    #[inline(always)]
    fn from(address: IpAddr) -> Self {
        Self::builder().ip(address).finish()
    }
}

impl From<&str> for Key {
    #[inline]
    fn from(text: &str) -> Self {
        Self::builder().text(text).finish()
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self::builder().bytes(&bytes).finish()
    }
}

impl From<u64> for Key {
    #[inline]
    fn from(number: u64) -> Self {
        Self::builder().number(number).finish()
    }
}

#[derive(Clone, Copy)]
enum PartKind {
    Missing = 0,
    Number = 1,
    Text = 2,
    Bytes = 3,
    V4 = 4,
    V6 = 6,
}

/// Collects the parts of a [`Key`].
///
/// ```
/// use throttle_core::Key;
///
/// let key = Key::builder().text("tenant").number(7).finish();
/// assert_eq!(key, Key::builder().text("tenant").number(7).finish());
/// assert_ne!(key, Key::builder().text("tenant7").finish(), "parts never run together");
/// ```
#[derive(Clone)]
pub struct KeyBuilder {
    len: usize,
    inline: Inline,
    /// Everything, once it does not fit inline.
    heap: Vec<u8>,
}

impl KeyBuilder {
    /// An address, whole.
    #[inline(always)]
    #[must_use]
    pub fn ip(self, address: IpAddr) -> Self {
        self.network(address, 128)
    }

    /// The first `bits` bits of an address, at most 32 for IPv4 and 128 for IPv6. The address is
    /// taken [in canonical form](crate::canonical_ip): as the IPv4 address that it stands for, if
    /// it does.
    #[inline(always)]
    #[must_use]
    pub fn network(self, address: IpAddr, bits: u8) -> Self {
        match address {
            IpAddr::V4(v4) => self.v4(v4, bits),
            IpAddr::V6(v6) => match embedded_ipv4(v6) {
                Some(v4) => self.v4(v4, bits),
                None => self.v6(v6, bits),
            },
        }
    }

    #[inline(always)]
    fn v4(mut self, address: Ipv4Addr, bits: u8) -> Self {
        let bits = bits.min(32);
        let masked = u32::from(address) & u32::MAX.checked_shl(u32::from(32 - bits)).unwrap_or(0);
        let (kind, masked) = (PartKind::V4 as u128, u128::from(masked.swap_bytes()));
        self.short(kind | masked << 8 | u128::from(bits) << 40, 6);
        self
    }

    #[inline]
    fn v6(mut self, address: Ipv6Addr, bits: u8) -> Self {
        let bits = bits.min(128);
        let masked =
            u128::from(address) & u128::MAX.checked_shl(u32::from(128 - bits)).unwrap_or(0);
        // The length says how many octets follow.
        let kept = usize::from(bits.div_ceil(8));
        if kept <= 14 {
            let (kind, bits) = (PartKind::V6 as u128, u128::from(bits));
            self.short(kind | bits << 8 | masked.swap_bytes() << 16, 2 + kept);
        } else {
            self.push(&[PartKind::V6 as u8, bits]);
            self.push(&masked.to_be_bytes()[..kept]);
        }
        self
    }

    /// Appends a text, byte for byte: case, width and whitespace are not normalized.
    #[inline]
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.sized(PartKind::Text, text.as_bytes());
        self
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.sized(PartKind::Bytes, bytes);
        self
    }

    /// A number.
    #[inline(always)]
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.short(
            PartKind::Number as u128 | u128::from(number.swap_bytes()) << 8,
            9,
        );
        self
    }

    /// Appends a missing part, which equals no other part.
    #[inline]
    #[must_use]
    pub fn missing(mut self) -> Self {
        self.push(&[PartKind::Missing as u8]);
        self
    }

    /// All parts of another key.
    #[inline]
    #[must_use]
    pub fn key(mut self, key: &Key) -> Self {
        match &key.0 {
            // Whole words again, as in `short`.
            KeyBytes::Inline { len, bytes } if self.len == 0 => {
                self.inline = *bytes;
                self.len = usize::from(*len);
            }
            KeyBytes::Inline { len, bytes } if *len < 16 => {
                let [low, _] = bytes.0;
                self.short(u128::from_le_bytes(low), usize::from(*len));
            }
            _ => self.push(key.expose_bytes()),
        }
        self
    }

    /// The key.
    #[inline(always)]
    #[must_use]
    pub fn finish(self) -> Key {
        if self.heap.is_empty() {
            // At most INLINE, which fits.
            Key(KeyBytes::Inline {
                len: self.len as u8,
                bytes: self.inline,
            })
        } else {
            Key(KeyBytes::Heap(self.heap.into()))
        }
    }

    #[inline]
    fn sized(&mut self, kind: PartKind, bytes: &[u8]) {
        let len = bytes.len();
        if len <= 14 {
            return self.short(
                kind as u128 | (len as u128) << 8 | number(bytes) << 16,
                2 + len,
            );
        }
        match u8::try_from(len) {
            Ok(len) if len < 255 => self.push(&[kind as u8, len]),
            _ => {
                self.push(&[kind as u8, 255]);
                self.push(&(len as u64).to_be_bytes());
            }
        }
        self.push(bytes);
    }

    /// Appends the first `len` of 16 bytes, the lowest of the number first; those after them are
    /// zero.
    ///
    /// Every request builds a key, and most have one such part: at the start it is one store, which
    /// the compiler can pass on to code that reads the key without going through memory. After
    /// another part it is shifted there.
    #[inline(always)]
    fn short(&mut self, number: u128, len: usize) {
        let [low, high] = &mut self.inline.0;
        match self.len {
            0 => *low = number.to_le_bytes(),
            at @ 1..16 => {
                *low = (u128::from_le_bytes(*low) | number << (8 * at)).to_le_bytes();
                *high = (number >> (128 - 8 * at)).to_le_bytes();
            }
            16 => *high = number.to_le_bytes(),
            _ => return self.push(&number.to_le_bytes()[..len]),
        }
        self.len += len;
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if end <= INLINE {
            self.inline.0.as_flattened_mut()[self.len..end].copy_from_slice(bytes);
        } else {
            if self.heap.is_empty() {
                self.heap
                    .extend_from_slice(&self.inline.0.as_flattened()[..self.len]);
            }
            self.heap.extend_from_slice(bytes);
        }
        self.len = end;
    }
}

/// At most 16 bytes as a number, the first the lowest.
#[inline]
fn number(bytes: &[u8]) -> u128 {
    // Two loads that overlap read any length of 8 to 16, or of 4 to 8, without a loop or a call.
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let shift = 8 * (bytes.len() - 8);
        return u128::from(u64::from_le_bytes(*first))
            | u128::from(u64::from_le_bytes(*last)) << shift;
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let shift = 8 * (bytes.len() - 4);
        return u128::from(u32::from_le_bytes(*first))
            | u128::from(u32::from_le_bytes(*last)) << shift;
    }
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

impl fmt::Debug for KeyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyBuilder")
    }
}

/// A part of a [`Key`], decoded.
///
/// ```
/// use throttle_core::{Key, KeyPart};
///
/// let key = Key::builder().text("tenant").number(7).finish();
/// assert!(key.expose_parts().eq([KeyPart::Text("tenant"), KeyPart::Number(7)]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPart<'a> {
    /// A part that is not there.
    Missing,
    /// A number.
    Number(u64),
    /// A text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// The first bits of an address, and how many; the others are zero.
    Network(IpAddr, u8),
}

impl KeyPart<'_> {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Number(_) => "number",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Network(IpAddr::V4(_), _) => "ipv4",
            Self::Network(IpAddr::V6(_), _) => "ipv6",
        }
    }
}

/// Walks the parts of an encoded key.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.take(8)?.first_chunk()?))
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let len = match self.byte()? {
            255 => usize::try_from(self.number()?).ok()?,
            len => usize::from(len),
        };
        self.take(len)
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = KeyPart<'a>;

    fn next(&mut self) -> Option<KeyPart<'a>> {
        Some(match self.byte()? {
            0 => KeyPart::Missing,
            1 => KeyPart::Number(self.number()?),
            // Only texts are written as such.
            2 => KeyPart::Text(std::str::from_utf8(self.sized()?).unwrap_or_default()),
            3 => KeyPart::Bytes(self.sized()?),
            4 => {
                let octets: [u8; 4] = *self.take(4)?.first_chunk()?;
                KeyPart::Network(IpAddr::from(octets), self.byte()?)
            }
            6 => {
                let bits = self.byte()?;
                let mut octets = [0; 16];
                let kept = self.take(usize::from(bits.div_ceil(8)))?;
                octets.get_mut(..kept.len())?.copy_from_slice(kept);
                KeyPart::Network(IpAddr::from(octets), bits)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(parts: &[String]) -> Key {
        parts
            .iter()
            .fold(Key::builder(), |key, part| key.text(part))
            .finish()
    }

    proptest! {
        #[test]
        fn law_11_attack_18_different_parts_are_different_keys(
            a in proptest::collection::vec(".{0,40}", 0..4),
            b in proptest::collection::vec(".{0,40}", 0..4),
        ) {
            prop_assert_eq!(a == b, texts(&a) == texts(&b));
            if let (Some(x), Some(y)) = (texts(&a).as_number(), texts(&b).as_number()) {
                prop_assert_eq!(a == b, x == y);
            }
        }

        #[test]
        fn law_11_parts_stand_one_after_the_other(parts in proptest::collection::vec(".{0,20}", 0..5), number: u64) {
            let mut bytes: Vec<u8> = Vec::new();
            for part in &parts {
                bytes.extend([PartKind::Text as u8, part.len() as u8]);
                bytes.extend(part.as_bytes());
            }
            let whole = texts(&parts);
            prop_assert_eq!(whole.expose_bytes(), &bytes[..]);
            let add = |key: KeyBuilder, part: &String| key.key(&Key::from(part.as_str()));
            let parts = parts.iter().fold(Key::builder().number(number), add);
            let (key, same) = (parts.finish(), Key::builder().number(number).key(&whole).finish());
            prop_assert_eq!(&key, &same);
            prop_assert_eq!(key.as_number(), same.as_number());
            prop_assert_eq!(&key.expose_bytes()[9..], &bytes[..]);
        }

        #[test]
        fn law_11_debug_never_shows_content(part in "[g-z]{8,300}") {
            let key = Key::builder().text(&part).number(7).finish();
            prop_assert_eq!(format!("{key:?}"), "Key(text, number)");
        }
    }

    /// Fifteen bytes and their length fit a number; one byte more does not.
    #[test]
    fn law_11_no_two_keys_share_a_number() {
        let number = |len: usize, last: u8| {
            let mut bytes = vec![7; len];
            bytes[len - 1] = last;
            Key::from(bytes).as_number()
        };
        for len in 1..=20 {
            let numbers: std::collections::HashSet<_> =
                (0..=255).filter_map(|last| number(len, last)).collect();
            assert_eq!(
                numbers.len(),
                if len <= 13 { 256 } else { 0 },
                "{len} bytes in two more"
            );
        }
        // A zero at the end is no end.
        assert_ne!(Key::from(vec![]).as_number(), Key::CONSTANT.as_number());
        assert_ne!(
            Key::missing().as_number(),
            Key::builder().missing().missing().finish().as_number()
        );
    }

    #[test]
    fn law_11_parts_are_returned_as_they_were_added() {
        let long = "x".repeat(300);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let key = Key::builder()
            .text("a:b")
            .missing()
            .number(7)
            .bytes(&[0, 255])
            .ip(ip("1.2.3.4"));
        let key = key
            .network(ip("2001:db8:1:2:3::"), 64)
            .text(&long)
            .text("")
            .finish();
        let expected = [
            KeyPart::Text("a:b"),
            KeyPart::Missing,
            KeyPart::Number(7),
            KeyPart::Bytes(&[0, 255]),
            KeyPart::Network(ip("1.2.3.4"), 32),
            KeyPart::Network(ip("2001:db8:1:2::"), 64),
            KeyPart::Text(&long),
            KeyPart::Text(""),
        ];
        assert_eq!(key.expose_parts().collect::<Vec<_>>(), expected);
        assert_eq!(Key::CONSTANT.expose_parts().count(), 0);
    }

    #[test]
    fn law_11_types_of_parts_are_part_of_the_key() {
        let keys = [
            Key::CONSTANT,
            Key::missing(),
            Key::from(1),
            Key::from("1"),
            Key::builder().bytes(b"1").finish(),
            Key::from(""),
            Key::from(IpAddr::from([0, 0, 0, 1])),
            Key::from("::1".parse::<IpAddr>().unwrap()),
        ];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(i == j, a == b, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn attack_12_mapped_addresses_are_the_ipv4_address() {
        let key = |text: &str| Key::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(key("1.2.3.4"), key("::ffff:1.2.3.4"));
        assert_eq!(key("1.2.3.4"), key("::ffff:102:304"));
        assert_ne!(key("1.2.3.4"), key("::ffff:1.2.3.5"));
        assert_ne!(key("1.2.3.4"), key("2001:db8::1.2.3.4"));
    }

    #[test]
    fn attack_12_translated_address_is_its_ipv4_address() {
        let network = |text: &str, bits| {
            Key::builder()
                .network(text.parse::<IpAddr>().unwrap(), bits)
                .finish()
        };
        for translated in ["64:ff9b::192.0.2.1", "::ffff:0:192.0.2.1"] {
            for bits in [24, 32, 64, 128] {
                assert_eq!(
                    network(translated, bits),
                    network("192.0.2.1", bits),
                    "{translated}/{bits}"
                );
            }
            assert_ne!(network(translated, 64), network("198.51.100.9", 64));
        }
    }

    #[test]
    fn law_11_a_key_without_parts_and_a_builder_show_nothing() {
        assert_eq!(format!("{:?}", Key::CONSTANT), "Key");
        assert_eq!(format!("{:?}", Key::missing()), "Key(missing)");
        assert_eq!(
            format!("{:?}", Key::builder().text("hunter2").number(7)),
            "KeyBuilder"
        );
        assert_eq!(Key::builder().finish(), Key::CONSTANT);
    }
}
