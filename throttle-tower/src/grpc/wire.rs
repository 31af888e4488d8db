//! The fields of a protobuf message. Fields of no value are left out, as protobuf 3 does.

/// A message that is being written.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

const VARINT: u32 = 0;
const LENGTH_DELIMITED: u32 = 2;

impl Message {
    #[must_use]
    pub(super) fn number(mut self, field: u32, value: u64) -> Self {
        if value != 0 {
            self.varint(u64::from(field << 3 | VARINT));
            self.varint(value);
        }
        self
    }

    #[must_use]
    pub(super) fn text(self, field: u32, text: &str) -> Self {
        if text.is_empty() {
            self
        } else {
            self.bytes(field, text.as_bytes())
        }
    }

    /// Unlike a text, an empty message is written.
    #[must_use]
    pub(super) fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.varint(u64::from(field << 3 | LENGTH_DELIMITED));
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Seven bits a byte, the lowest first.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of protobuf's documentation of its encoding.
    #[test]
    fn fields_are_written_as_documented() {
        assert_eq!(
            Message::default().number(1, 150).finish(),
            [0x08, 0x96, 0x01]
        );
        assert_eq!(
            Message::default().text(2, "testing").finish(),
            b"\x12\x07testing"
        );
        let inner = Message::default().number(1, 150);
        assert_eq!(
            Message::default().message(3, &inner).finish(),
            [0x1a, 0x03, 0x08, 0x96, 0x01]
        );
    }

    #[test]
    fn zero_and_empty_texts_are_left_out_and_empty_messages_are_not() {
        assert!(
            Message::default()
                .number(1, 0)
                .text(2, "")
                .finish()
                .is_empty()
        );
        assert_eq!(
            Message::default().message(1, &Message::default()).finish(),
            [0x0a, 0x00]
        );
    }

    #[test]
    fn largest_number_has_ten_bytes() {
        let written = Message::default().number(1, u64::MAX).finish();
        assert_eq!((written.len(), written[1], written[10]), (11, 0xff, 0x01));
    }
}
