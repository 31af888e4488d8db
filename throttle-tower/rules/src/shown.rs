//! How text of a file is shown in messages: short, and with nothing that a terminal acts on or
//! hides.

/// Most characters of a value that a message shows.
const SHOWN: usize = 60;

pub(super) fn shorten(text: &str, show: impl Fn(&str) -> String) -> String {
    match text.char_indices().nth(SHOWN) {
        None => show(text),
        Some((end, _)) => format!("{} and so on", show(&text[..end])),
    }
}

/// Whether a character is shown as it is. Control characters and characters that reorder or end a
/// line are not.
pub(super) fn is_plain(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

/// A message with what is not plain escaped, as `\u{202e}`.
pub(super) fn plain(message: String) -> String {
    if message.chars().all(is_plain) {
        return message;
    }
    let mut escaped = String::with_capacity(message.len());
    for c in message.chars() {
        if is_plain(c) {
            escaped.push(c);
        } else {
            escaped.extend(c.escape_debug());
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_plain_is_escaped() {
        let text = |text: &str| plain(text.to_owned());
        assert_eq!(text("name is \"é\\n\", 'ß' 限"), "name is \"é\\n\", 'ß' 限");
        assert_eq!(
            text("a\nb\u{1b}[2J\u{202e}\u{2066}\u{2028}"),
            "a\\nb\\u{1b}[2J\\u{202e}\\u{2066}\\u{2028}"
        );
    }

    #[test]
    fn sixty_characters_are_shown() {
        let quoted = |text: &str| shorten(text, |text| format!("{text:?}"));
        assert_eq!(
            quoted(&"\u{e9}".repeat(60)),
            format!("{:?}", "\u{e9}".repeat(60))
        );
        assert_eq!(
            quoted(&"\u{e9}".repeat(61)),
            format!("{:?} and so on", "\u{e9}".repeat(60))
        );
    }
}
