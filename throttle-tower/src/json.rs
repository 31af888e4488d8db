//! Texts inside the quotes of JSON strings.

pub(crate) fn escape(body: &mut Vec<u8>, name: &str) {
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => body.extend_from_slice(&[b'\\', byte]),
            0x00..=0x1F => {
                body.extend_from_slice(b"\\u00");
                body.extend([byte >> 4, byte & 0xF].map(|nibble| HEX[usize::from(nibble)]));
            }
            _ => body.push(byte),
        }
    }
}

pub(crate) fn escaped_len(name: &str) -> usize {
    name.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' => 2,
            0x00..=0x1F => 6,
            _ => 1,
        })
        .sum()
}

const HEX: &[u8; 16] = b"0123456789abcdef";
