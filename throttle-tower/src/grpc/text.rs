//! How gRPC writes texts and bytes in headers.

use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Everything but printable ASCII, and the percent sign, as `%XX`.
pub(super) fn percent_encoded(text: &str) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte),
            _ => encoded.extend([
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 0xF)],
            ]),
        }
    }
    encoded
}

/// Base64 as gRPC sends binary metadata: written without padding, and read with or without it.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

const HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    #[test]
    fn base64_is_written_without_padding_and_read_with_or_without_it() {
        assert_eq!(BASE64.encode(b"foob"), "Zm9vYg");
        for (text, bytes) in [
            ("Zm9vYg", Some("foob")),
            ("Zm9vYg==", Some("foob")),
            ("Zm9vYh", Some("foob")),
        ] {
            assert_eq!(
                BASE64.decode(text).ok().as_deref(),
                bytes.map(str::as_bytes),
                "{text}"
            );
        }
        for text in ["Z", "Zm9vY", "Zm 9v", "Zm9v-_", "====", "Zg=g"] {
            assert!(BASE64.decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_printable_text_without_percent_signs_stays() {
        let printable: String = (' '..='~').filter(|c| *c != '%').collect();
        assert_eq!(percent_encoded(&printable), printable.as_bytes());
        assert_eq!(percent_encoded("100 %\n\u{7f}ä"), b"100 %25%0A%7F%C3%A4");
    }
}
