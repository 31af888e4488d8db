//! The slot of a key, and the division of slots among masters.

use std::ops::RangeInclusive;

pub(super) const SLOTS: u16 = 16384;

/// The slot of a key by the cluster specification: CRC16 of the text in the first pair of braces,
/// or of the whole key if there is no such pair or it is empty.
#[must_use]
pub fn slot_of(key: impl AsRef<[u8]>) -> u16 {
    let key = key.as_ref();
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let rest = &key[open + 1..];
    let close = rest.iter().position(|&byte| byte == b'}')?;
    (close > 0).then(|| &rest[..close])
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    })
}

/// All slots in `count` ranges, of equal length except for the last.
pub(super) fn shares(count: usize) -> Vec<RangeInclusive<u16>> {
    let count = u16::try_from(count).expect("a handful of masters");
    let length = SLOTS / count;
    (0..count)
        .map(|n| {
            n * length..=if n + 1 == count {
                SLOTS - 1
            } else {
                (n + 1) * length - 1
            }
        })
        .collect()
}

/// All slots in ranges of 256, for masters in turn.
pub(super) fn in_turn() -> Vec<RangeInclusive<u16>> {
    let range = |n: u16| 256 * n..=256 * n + 255;
    (0..SLOTS / 256).map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn only_the_first_tag_counts_and_only_if_it_holds_something() {
        assert_eq!(slot_of("{a}b{c}"), slot_of("a"));
        assert_eq!(slot_of("x{a"), crc16(b"x{a") % SLOTS);
        assert_eq!(slot_of("x{}{a}"), crc16(b"x{}{a}") % SLOTS);
        assert_eq!(slot_of("{{a}}"), slot_of("{a"));
    }

    #[test]
    fn shares_are_all_slots() {
        assert_eq!(shares(3), [0..=5460, 5461..=10921, 10922..=16383]);
    }
}
