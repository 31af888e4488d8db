//! Texts inside the quotes of JSON strings, and objects of values that are JSON already.

/// The text as a string of JSON, with its quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            '\0'..='\x1F' => quoted += &format!("\\u{:04x}", u32::from(char)),
            _ => quoted.push(char),
        }
    }
    quoted + "\""
}

/// An object. Names need no escapes, and values are JSON.
pub(crate) fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!(r#""{name}":{value}"#))
        .collect();
    format!("{{{}}}", fields.join(","))
}
