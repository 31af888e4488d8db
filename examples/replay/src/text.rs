//! How numbers and texts of clients are shown.

/// A number with its thousands apart.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A number under two assumptions, or the same under both.
pub fn bracket(numbers: impl Iterator<Item = u64> + Clone) -> String {
    let (least, most) = (
        numbers.clone().min().unwrap_or(0),
        numbers.max().unwrap_or(0),
    );
    if least == most {
        number(least)
    } else {
        format!("{} to {}", number(least), number(most))
    }
}

/// What a client has written, without what a terminal would obey.
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' | '\'' | '\\' => shown.push(char),
            char => shown.extend(char.escape_debug()),
        }
    }
    shown
}

/// Text within HTML.
pub fn html(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            char if char.is_control() => shown.extend(char.escape_default()),
            char => shown.push(char),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_shown_safely() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(number),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            (bracket([7, 7].into_iter()), bracket([1_200, 7].into_iter())),
            ("7".into(), "7 to 1,200".into())
        );
        assert_eq!(
            escaped("\"a\" \u{1b}[31m\u{202e}\n"),
            "\"a\" \\u{1b}[31m\\u{202e}\\n"
        );
        assert_eq!(
            html("<a href='x'>&\u{7}"),
            "&lt;a href=&#39;x&#39;&gt;&amp;\\u{7}"
        );
    }
}
