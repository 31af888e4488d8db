/// Reads base64, padded or not, as gRPC sends binary metadata (RFC 4648, section 4). `None` for anything else.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if text.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let bits = group.iter().try_fold(0_u32, |bits, digit| Some(bits << 6 | sextet(*digit)?))?;
        // A group of two digits makes one byte, and one of three makes two; the bits behind are padding.
        let whole = bits << (6 * (4 - group.len()));
        bytes.extend(&whole.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

fn sextet(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 4648, section 10.
    #[test]
    fn base64_is_read_with_and_without_padding() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap(), bytes.as_bytes(), "{text}");
            assert_eq!(decode(text.trim_end_matches('=').as_bytes()).unwrap(), bytes.as_bytes(), "{text}");
        }
        assert_eq!(decode(b"+/+/").unwrap(), [0xfb, 0xff, 0xbf]);
        for text in ["Z", "Zm9vY", "Zm 9v", "Zm9v-_", "====", "Zg=g"] {
            assert_eq!(decode(text.as_bytes()), None, "{text:?}");
        }
    }
}
