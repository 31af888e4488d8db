//! Header values while they are written, and the Integers in them.

use http::HeaderValue;

/// The largest Integer that a structured field can hold (RFC 9651 §3.3.1). A larger one makes the
/// whole header unreadable, and a smaller number promises less, so it is true as well.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Whole seconds, rounded up, so that no wait ends early. Even `u64::MAX` microseconds are fewer
/// seconds than [`MAX_INTEGER`].
pub(super) fn seconds(us: u64) -> u64 {
    us.div_ceil(1_000_000)
}

/// A header value that is being written, on the stack for any ordinary number of policies: a vector
/// adds 126 instructions to a response, and a `SmallVec` some 65 to each piece.
pub(super) struct ValueText {
    len: usize,
    inline: [u8; INLINE],
    /// All of it, if it does not fit inline.
    heap: Vec<u8>,
}

const INLINE: usize = 128;

impl Default for ValueText {
    fn default() -> Self {
        Self {
            len: 0,
            inline: [0; INLINE],
            heap: Vec::new(),
        }
    }
}

impl ValueText {
    #[inline]
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        // A text on the heap is longer than the inline part, so `get_mut` returns `None`.
        match self.inline.get_mut(self.len..self.len + bytes.len()) {
            Some(free) => free.copy_from_slice(bytes),
            None => self.spill(bytes),
        }
        self.len += bytes.len();
        self
    }

    fn spill(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.len]);
        }
        self.heap.extend_from_slice(bytes);
    }

    fn as_bytes(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.heap)
    }

    pub(super) fn integer(&mut self, n: u64) -> &mut Self {
        self.bytes(itoa::Buffer::new().format(n).as_bytes())
    }

    /// Separates the next member of a list from the one before it, if there is one.
    pub(super) fn next_member(&mut self) -> &mut Self {
        if self.len == 0 {
            self
        } else {
            self.bytes(b", ")
        }
    }

    /// `None` for an empty text, because an empty list is written by omitting the header; and for a
    /// text that no header can hold, because a missing header is better than a lost response.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        let value = HeaderValue::from_bytes(self.as_bytes());
        value.ok().filter(|value| !value.is_empty())
    }
}

/// The header value of a single number.
pub(super) fn integer_value(n: u64) -> Option<HeaderValue> {
    HeaderValue::from_str(itoa::Buffer::new().format(n)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_are_written_like_those_of_the_standard_library(n: u64, bits in 0_u32..64) {
            let n = n >> bits;
            prop_assert_eq!(integer_value(n).unwrap(), n.to_string());
        }
    }

    /// On both sides of the bound where it moves to the heap, in pieces of several sizes.
    #[test]
    fn text_that_outgrows_its_buffer_keeps_every_byte() {
        for length in INLINE - 3..=INLINE + 40 {
            let whole: Vec<u8> = (b'a'..=b'z').cycle().take(length).collect();
            for piece in [1, 2, 7, INLINE - 1, INLINE, INLINE + 1, length] {
                let mut text = ValueText::default();
                for part in whole.chunks(piece) {
                    text.bytes(part).bytes(b"");
                }
                assert_eq!(text.as_bytes(), whole, "{length} in pieces of {piece}");
                assert_eq!(text.value().unwrap().as_bytes(), whole);
            }
        }
    }

    #[test]
    fn text_that_no_header_can_hold_is_no_value() {
        assert_eq!(ValueText::default().value(), None, "an empty list");
        for illegal in [b"a\nb", b"a\0b", b"a\x7fb"] {
            assert_eq!(
                ValueText::default().bytes(illegal).value(),
                None,
                "{}",
                illegal.escape_ascii()
            );
        }
        assert_eq!(
            ValueText::default()
                .next_member()
                .bytes(b"a")
                .next_member()
                .bytes(b"b")
                .value()
                .unwrap(),
            "a, b"
        );
    }

    #[test]
    fn part_of_a_second_is_a_whole_one() {
        for (us, whole) in [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(seconds(us), whole, "{us}");
        }
        assert_eq!(seconds(u64::MAX), 18_446_744_073_710);
        assert_eq!(integer_value(1_234).unwrap(), "1234");
        assert_eq!(MAX_INTEGER, 999_999_999_999_999, "fifteen digits");
    }
}
