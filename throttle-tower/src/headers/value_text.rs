//! Integers as structured fields hold them, and the buffer that header values are written to.

use http::HeaderValue;

/// The largest Integer that a structured field can hold (RFC 9651 §3.3.1). A larger one makes the
/// whole header unreadable, and a smaller number promises less, so it is true as well.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Whole seconds, rounded up, so that no wait ends early. Even `u64::MAX` microseconds are fewer
/// seconds than [`MAX_INTEGER`].
pub(super) fn seconds(us: u64) -> u64 {
    us.div_ceil(MICROS_PER_SECOND)
}

/// A header value under construction, on the stack for any ordinary number of policies. It is
/// large, so do not move it.
pub(super) struct Text {
    len: usize,
    inline: [u8; INLINE],
    /// Everything, once it does not fit inline.
    heap: Vec<u8>,
}

const INLINE: usize = 128;

impl Text {
    pub(super) fn new() -> Self {
        Self {
            len: 0,
            inline: [0; INLINE],
            heap: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        // Once the text is on the heap, `len` is past the inline part, and `get_mut` returns
        // `None`.
        match self.inline.get_mut(self.len..self.len + bytes.len()) {
            Some(free) => free.copy_from_slice(bytes),
            _ => self.spill(bytes),
        }
        self.len += bytes.len();
        self
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.len]);
        }
        self.heap.extend_from_slice(bytes);
    }

    #[inline]
    pub(super) fn byte(&mut self, byte: u8) -> &mut Self {
        self.bytes(&[byte])
    }

    pub(super) fn integer(&mut self, n: u64) -> &mut Self {
        match u8::try_from(n) {
            // As most windows are.
            Ok(digit @ 0..10) => self.byte(b'0' + digit),
            _ => self.bytes(itoa::Buffer::new().format(n).as_bytes()),
        }
    }

    /// Separates the next member of a list from the one before it, if there is one.
    pub(super) fn next_member(&mut self) -> &mut Self {
        if self.len == 0 {
            self
        } else {
            self.bytes(b", ")
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        if self.heap.is_empty() {
            &self.inline[..self.len]
        } else {
            &self.heap
        }
    }

    /// `None` for an empty text, because an empty list is written by omitting the header; and for a
    /// text that no header can hold, because a missing header is better than a lost response.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        if self.len == 0 {
            None
        } else {
            HeaderValue::from_bytes(self.as_bytes()).ok()
        }
    }
}

/// The header value of a single number.
pub(super) fn integer_value(n: u64) -> Option<HeaderValue> {
    Text::new().integer(n).value()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_are_written_like_those_of_the_standard_library(n: u64, bits in 0_u32..64) {
            let n = n >> bits;
            let mut text = Text::new();
            text.integer(n);
            prop_assert_eq!(std::str::from_utf8(text.as_bytes()).unwrap(), n.to_string());
        }
    }

    /// On both sides of the bound where it moves to the heap, in pieces of several sizes.
    #[test]
    fn text_that_outgrows_its_buffer_keeps_every_byte() {
        for length in INLINE - 3..=INLINE + 40 {
            let whole: Vec<u8> = (b'a'..=b'z').cycle().take(length).collect();
            for piece in [1, 2, 7, INLINE - 1, INLINE, INLINE + 1, length] {
                let mut text = Text::new();
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
        assert_eq!(Text::new().value(), None, "an empty list");
        for illegal in [b"a\nb", b"a\0b", b"a\x7fb"] {
            assert_eq!(
                Text::new().bytes(illegal).value(),
                None,
                "{}",
                illegal.escape_ascii()
            );
        }
        assert_eq!(
            Text::new()
                .next_member()
                .byte(b'a')
                .next_member()
                .byte(b'b')
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
