//! Texts inside the quotes of JSON strings, and objects of values that are JSON already.

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

/// The text as a string of JSON, with its quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = vec![b'"'];
    escape(&mut quoted, text);
    quoted.push(b'"');
    String::from_utf8(quoted).unwrap_or_default()
}

/// An object. Names need no escapes, and values are JSON.
pub(crate) fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!(r#""{name}":{value}"#))
        .collect();
    format!("{{{}}}", fields.join(","))
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
