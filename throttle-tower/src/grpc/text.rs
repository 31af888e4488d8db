//! How gRPC writes texts and bytes in headers.

/// Everything but printable ASCII, and the percent sign, as `%XX`.
pub(super) fn percent_encoded(text: &str) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte),
            _ => encoded.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xF)]]),
        }
    }
    encoded
}

/// Base64 without padding.
pub(crate) fn base64(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().enumerate().fold(0, |bits, (place, byte)| bits | u32::from(*byte) << (16 - 8 * place));
        let digits = [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 0x3F) as usize]);
        encoded.extend_from_slice(&digits[..=chunk.len()]);
    }
    encoded
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 4648 without their padding, and one that needs the last digits.
    #[test]
    fn base64_has_no_padding() {
        for (bytes, expected) in [
            (b"".as_slice(), "".as_bytes()),
            (b"f", b"Zg"),
            (b"fo", b"Zm8"),
            (b"foo", b"Zm9v"),
            (b"foob", b"Zm9vYg"),
            (b"fooba", b"Zm9vYmE"),
            (b"foobar", b"Zm9vYmFy"),
            (b"\xfb\xff\xbf", b"+/+/"),
        ] {
            assert_eq!(base64(bytes), expected);
        }
    }

    #[test]
    fn only_printable_text_without_percent_signs_stays() {
        let printable: String = (' '..='~').filter(|c| *c != '%').collect();
        assert_eq!(percent_encoded(&printable), printable.as_bytes());
        assert_eq!(percent_encoded("100 %\n\u{7f}ä"), b"100 %25%0A%7F%C3%A4");
    }
}
