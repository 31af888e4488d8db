//! What a file may be at most, checked before it is parsed: a parser needs far more time and memory
//! than this does.

use std::ops::Range;

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Most bytes in a file.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting of tables and lists. A file that says everything needs nine levels.
pub(super) const MAX_DEPTH: usize = 32;

/// A bound that a text exceeds: where, and what to write instead.
pub(super) type Excess = (Option<Range<usize>>, String);

/// # Errors
///
/// If the text is longer than [`MAX_BYTES`], is nested deeper than [`MAX_DEPTH`] or has control
/// characters.
pub(super) fn check(text: &str) -> Result<(), Excess> {
    if text.len() > MAX_BYTES {
        return Err((None, too_long()));
    }
    if let Some(position) = too_deep(text) {
        let rule = format!(
            "the nesting is deeper than {MAX_DEPTH} tables and lists; no setting needs that"
        );
        return Err((Some(position..position + 1), rule));
    }
    if let Some((position, byte)) = control_character(text.as_bytes()) {
        let rule = format!(
            "the file has the control character U+{byte:04X}, which TOML does not permit; remove it"
        );
        return Err((Some(position..position + 1), rule));
    }
    Ok(())
}

/// The first control character other than a tab or the end of a line. To a parser each is an error
/// of its own.
fn control_character(text: &[u8]) -> Option<(usize, u8)> {
    let is_forbidden = |position: usize, byte: u8| match byte {
        b'\t' | b'\n' => false,
        b'\r' => text.get(position + 1) != Some(&b'\n'),
        _ => byte.is_ascii_control(),
    };
    text.iter()
        .copied()
        .enumerate()
        .find(|(position, byte)| is_forbidden(*position, *byte))
}

pub(super) fn too_long() -> String {
    format!("the file is too long: it can have at most {MAX_BYTES} bytes (1 MiB)")
}

/// The position at which the nesting becomes too deep. Brackets nest, and so do the dots of a key:
/// `a.b` is a table in a table.
fn too_deep(text: &str) -> Option<usize> {
    let mut nesting = Nesting {
        at_line_start: true,
        ..Nesting::default()
    };
    let mut tokens = Source::new(text).lex();
    tokens
        .find(|token| nesting.is_too_deep(token.kind()))
        .map(|token| token.span().start())
}

#[derive(Default)]
struct Nesting {
    depth: usize,
    /// The depth at each bracket that is open.
    open: Vec<usize>,
    /// The depth of the table that the last header names.
    header: usize,
    in_header: bool,
    at_line_start: bool,
}

impl Nesting {
    /// Whether the nesting is too deep with one more token.
    fn is_too_deep(&mut self, token: TokenKind) -> bool {
        match token {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                if token == TokenKind::LeftSquareBracket
                    && self.at_line_start
                    && self.open.is_empty()
                {
                    (self.in_header, self.depth) = (true, 0);
                }
                self.open.push(self.depth);
                self.depth += 1;
            }
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                if self.in_header {
                    self.header = self.depth;
                }
                self.depth = self.open.pop().unwrap_or(0);
            }
            TokenKind::Dot => self.depth += 1,
            TokenKind::Comma | TokenKind::Newline => {
                if self.open.is_empty() {
                    self.in_header = false;
                }
                self.depth = self.open.last().map_or(self.header, |depth| depth + 1);
            }
            _ => {}
        }
        self.at_line_start =
            token == TokenKind::Newline || (self.at_line_start && token == TokenKind::Whitespace);
        self.depth > MAX_DEPTH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(text: &str) -> Option<usize> {
        too_deep(text)
    }

    #[test]
    fn brackets_and_dots_nest() {
        let lists = |depth: usize| format!("a = {}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(position(&lists(MAX_DEPTH)), None);
        assert_eq!(position(&lists(MAX_DEPTH + 1)), Some(4 + MAX_DEPTH));
        let keys = |depth: usize| format!("a{} = 1", ".a".repeat(depth));
        assert_eq!(position(&keys(MAX_DEPTH)), None);
        assert_eq!(position(&keys(MAX_DEPTH + 1)), Some(1 + 2 * MAX_DEPTH));
        let tables = |depth: usize| format!("{}a = 1{}", "a = {".repeat(depth), "}".repeat(depth));
        assert_eq!(
            (
                position(&tables(MAX_DEPTH)),
                position(&tables(MAX_DEPTH + 1)).is_some()
            ),
            (None, true)
        );
    }

    #[test]
    fn quotes_at_the_end_of_a_long_string_hide_nothing() {
        for (quote, own) in [('\'', 1), ('\'', 2), ('"', 1), ('"', 2)] {
            let [start, end] = [3, 3 + own].map(|count| quote.to_string().repeat(count));
            let text = format!("a = [{start}x{end}, {}", "[".repeat(MAX_DEPTH));
            assert_eq!(position(&text), Some(text.len() - 1), "{text}");
        }
    }

    #[test]
    fn header_counts_for_the_keys_below_it() {
        let half = MAX_DEPTH / 2;
        let text =
            |keys: usize| format!("[a{}]\n\nb{} = 1", ".a".repeat(half - 1), ".b".repeat(keys));
        assert_eq!(position(&text(half)), None);
        assert!(position(&text(half + 1)).is_some());
        let twice = text(half).replace("b.b", "[c]\nb.b");
        assert_eq!(position(&twice), None, "the second header ends the first");
    }

    #[test]
    fn strings_comments_and_neighbours_do_not_nest() {
        let many = "[".repeat(100);
        for text in [
            format!("a = \"{many}\""),
            format!("a = '{many}' # {many}"),
            format!("a = \"\"\"\n{many}\n\"{many}\"\"\""),
            format!("a = '''\n{many}\n'''"),
            format!("a = \"\\\"{many}\""),
            "a = [1.5, 2.5]\n".repeat(100),
            format!("a = [{}]", "[1.5], ".repeat(100)),
            "[a.b.c]\nd.e = { f = [1] }\n".repeat(100),
        ] {
            assert_eq!(position(&text), None, "{text}");
        }
    }

    /// What is behind a string that has ended is not hidden by it.
    #[test]
    fn nesting_behind_a_string_is_found() {
        let many = "[".repeat(MAX_DEPTH + 1);
        for start in [
            "a = \"\n",
            "a = '\n",
            "a = '\\' #\n",
            "a = '\\'",
            "a = \"\\\\\"",
            "a = \"\"",
            "# a\n",
            "a = ",
        ] {
            let text = format!("{start}{many}");
            assert_eq!(position(&text), Some(text.len() - 1), "{text}");
        }
        for text in [
            format!("a = \"\"\"{many}"),
            format!("a = \"{many}"),
            format!("# {many}"),
        ] {
            assert_eq!(position(&text), None, "{text}");
        }
    }

    #[test]
    fn header_may_be_indented() {
        let text =
            |header: &str| format!("[a{}]\n{header}\nb{} = 1", ".a".repeat(30), ".b".repeat(2));
        assert!(position(&text("")).is_some());
        for header in ["[c]", "  [c]", "\t[c]", " [[c]]"] {
            assert_eq!(
                position(&text(header)),
                None,
                "{header:?} ends the header before it"
            );
        }
    }

    #[test]
    fn each_bound_is_told_where_it_is_exceeded() {
        assert_eq!(check(&"#".repeat(MAX_BYTES)), Ok(()));
        assert_eq!(check(&"#".repeat(MAX_BYTES + 1)), Err((None, too_long())));
        let nested = "a = ".to_owned() + &"[".repeat(MAX_DEPTH + 1);
        let rule = "the nesting is deeper than 32 tables and lists; no setting needs that";
        assert_eq!(
            check(&nested),
            Err((Some(4 + MAX_DEPTH..5 + MAX_DEPTH), rule.to_owned()))
        );
        for (text, position, code) in [
            ("a\u{b}\u{c}", 1, "000B"),
            ("\r", 0, "000D"),
            ("\r\n\r\r\n", 2, "000D"),
        ] {
            let rule = format!(
                "the file has the control character U+{code}, which TOML does not permit; remove it"
            );
            assert_eq!(
                check(text),
                Err((Some(position..position + 1), rule)),
                "{text:?}"
            );
        }
        assert_eq!(check("\t a\r\n\n\u{80}"), Ok(()));
    }
}
