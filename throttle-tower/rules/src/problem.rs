//! What is wrong with a file, and where.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt::{self, Write as _};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::shown::{is_plain, plain};

/// Everything that is wrong with a file, in the file's order.
///
/// Its `Display` shows every problem with its line and a caret: text for a terminal or a log.
///
/// ```
/// use throttle_rules::{Registry, Rules};
///
/// let text = r#"version = 1
/// [[limit]]
/// name = "per-ip"
/// by = "client-ip"
/// gcra = { rate = "0/second", brust = 20 }"#;
/// let error = Rules::from_str("throttle.toml", text, Registry::new()).unwrap_err();
/// assert_eq!(error.problems().len(), 2);
/// assert_eq!(
///     (error.problems()[1].line(), error.problems()[1].column()),
///     (Some(5), Some(29))
/// );
/// let first = r#"throttle.toml:5:17: limit "per-ip": gcra.rate is "0/second": rate count is 0: it must lie"#;
/// assert!(error.to_string().starts_with(first));
/// ```
#[derive(Clone, Debug)]
pub struct RulesError {
    problems: Vec<Problem>,
    more: usize,
    /// Why the file cannot be read.
    source: Option<Arc<io::Error>>,
}

/// One thing that is wrong with a file.
///
/// ```
/// use throttle_rules::{Problem, Registry, Rules};
///
/// let error =
///     Rules::from_str("throttle.toml", "version = 2\nlimit = []", Registry::new()).unwrap_err();
/// let problem: &Problem = &error.problems()[0];
/// assert_eq!((problem.line(), problem.column()), (Some(1), Some(11)));
/// assert!(problem.message().starts_with("version is 2"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: Arc<str>,
    position: Option<Position>,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    line: usize,
    column: usize,
    /// The line with a caret below it.
    excerpt: String,
}

impl RulesError {
    /// Most problems that an error holds; further ones are only counted.
    pub const MAX_PROBLEMS: usize = 20;

    pub(super) fn one(file: &Arc<str>, message: String) -> Self {
        Self {
            problems: vec![Problem {
                file: Arc::clone(file),
                position: None,
                message,
            }],
            more: 0,
            source: None,
        }
    }

    /// A file that cannot be read.
    pub(super) fn unread(file: &Arc<str>, error: io::Error) -> Self {
        let message = format!("the file cannot be read: {error}");
        Self {
            source: Some(Arc::new(error)),
            ..Self::one(file, message)
        }
    }

    /// The problems, in the file's order; at least one, and at most
    /// [`MAX_PROBLEMS`](Self::MAX_PROBLEMS).
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// How many more problems there are.
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }
}

impl Problem {
    /// The line, from 1; `None` for a problem of the whole file or of the registry.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.position.as_ref().map(|position| position.line)
    }

    /// The column, from 1, in characters; `None` for a problem of the whole file or of the
    /// registry.
    #[must_use]
    pub fn column(&self) -> Option<usize> {
        self.position.as_ref().map(|position| position.column)
    }

    /// The field, its value, the bound, and what to write instead.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            position,
            message,
        } = self;
        match position {
            Some(Position {
                line,
                column,
                excerpt,
            }) => write!(f, "{file}:{line}:{column}: {message}\n{excerpt}"),
            None => write!(f, "{file}: {message}"),
        }
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if number == 0 { "" } else { "\n" })?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl Error for RulesError {
    /// The I/O error, if the file cannot be read.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| &**error as _)
    }
}

/// Errors are equal if they say the same.
impl PartialEq for RulesError {
    fn eq(&self, other: &Self) -> bool {
        (&self.problems, self.more) == (&other.problems, other.more)
    }
}

impl Eq for RulesError {}

/// Collects problems while a file is read.
#[derive(Default)]
pub(super) struct Problems {
    found: RefCell<Vec<(Option<Range<usize>>, String)>>,
    dropped: Cell<usize>,
}

impl Problems {
    /// A file in which everything is wrong costs no more than this.
    const MOST_KEPT: usize = 1_000;

    pub(super) fn add(&self, span: Option<Range<usize>>, message: impl Into<String>) {
        if self.are_full() {
            self.dropped.set(self.dropped.get() + 1);
        } else {
            self.found.borrow_mut().push((span, message.into()));
        }
    }

    /// Whether further problems are only counted, so that their messages need no care.
    pub(super) fn are_full(&self) -> bool {
        self.found.borrow().len() >= Self::MOST_KEPT
    }

    pub(super) fn are_there(&self) -> bool {
        !self.found.borrow().is_empty()
    }

    /// All of them. There is at least one.
    pub(super) fn into_error(self, file: &Arc<str>, text: &str) -> RulesError {
        let mut found = self.found.into_inner();
        let start = |span: &Option<Range<usize>>| span.as_ref().map(|span| span.start);
        found.sort_by_key(|(span, _)| start(span));
        found.dedup();
        let more = found.len().saturating_sub(RulesError::MAX_PROBLEMS) + self.dropped.get();
        found.truncate(RulesError::MAX_PROBLEMS);
        let problem = |(span, message): (Option<Range<usize>>, String)| Problem {
            file: Arc::clone(file),
            position: span.map(|span| Position::of(text, span)),
            message: plain(message),
        };
        RulesError {
            problems: found.into_iter().map(problem).collect(),
            more,
            source: None,
        }
    }
}

/// Most characters of a line that are shown.
const SHOWN: usize = 100;

impl Position {
    fn of(text: &str, span: Range<usize>) -> Self {
        let at = |position: usize| {
            (0..=position.min(text.len()))
                .rev()
                .find(|position| text.is_char_boundary(*position))
        };
        let (start, end) = (at(span.start).unwrap_or(0), at(span.end).unwrap_or(0));
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[..line_start].matches('\n').count() + 1;
        let content = text[line_start..].lines().next().unwrap_or("");
        let before = text[line_start..start]
            .trim_start_matches('\u{feff}')
            .chars()
            .count();
        let marked = text[start..end]
            .lines()
            .next()
            .map_or(0, |marked| marked.chars().count());
        // A file can be one line.
        let content: Vec<char> = content
            .trim_start_matches('\u{feff}')
            .chars()
            .take(before + 2 * SHOWN)
            .collect();
        Self {
            line,
            column: before + 1,
            excerpt: excerpt(line, &content, before, marked.max(1)),
        }
    }
}

/// The line with a caret below the part that is wrong. Of a long line, what is around that part.
fn excerpt(line: usize, content: &[char], before: usize, marked: usize) -> String {
    let first = if content.len() <= SHOWN {
        0
    } else {
        before.saturating_sub(SHOWN / 2)
    };
    let last = content.len().min(first + SHOWN);
    // A control character or a change of direction would move the caret, or worse.
    let plain = content[first..last].iter().map(|c| match c {
        '\t' => ' ',
        c if is_plain(*c) => *c,
        _ => '\u{fffd}',
    });
    let shown: String = plain.collect();
    let (ahead, behind) = (
        if first > 0 { "…" } else { "" },
        if last < content.len() { "…" } else { "" },
    );
    let gutter = line.to_string().len();
    let indent = before - first + ahead.chars().count();
    let marked = marked.min((last.saturating_sub(before)).max(1));
    let mut excerpt = String::new();
    let _ = writeln!(excerpt, "{:gutter$} |", "");
    let _ = write!(excerpt, "{line} | {ahead}{shown}{behind}");
    excerpt.truncate(excerpt.trim_end().len());
    let _ = write!(
        excerpt,
        "\n{:gutter$} | {:indent$}{}",
        "",
        "",
        "^".repeat(marked)
    );
    excerpt
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;

    fn error(text: &str, spans: impl IntoIterator<Item = Range<usize>>) -> RulesError {
        let problems = Problems::default();
        spans
            .into_iter()
            .for_each(|span| problems.add(Some(span.clone()), format!("{span:?} is wrong")));
        problems.into_error(&"f".into(), text)
    }

    #[test]
    fn problem_is_shown_with_its_line_and_a_caret() {
        let text = "a = 1\r\n\tb = \"é\u{7}\"\nc = 3";
        assert_eq!(
            error(text, [12..17, 0..1]).to_string(),
            "f:1:1: 0..1 is wrong\n  |\n1 | a = 1\n  | ^\n\
             f:2:6: 12..17 is wrong\n  |\n2 |  b = \"é\u{fffd}\"\n  |      ^^^^"
        );
    }

    #[test]
    fn byte_order_mark_takes_no_column() {
        let error = error("\u{feff}a = 1", once(3..4));
        assert_eq!(
            error.to_string(),
            "f:1:1: 3..4 is wrong\n  |\n1 | a = 1\n  | ^"
        );
    }

    #[test]
    fn places_at_and_beyond_the_end_are_shown() {
        for (text, span, position) in [
            ("", 0..0, (1, 1)),
            ("a", 1..1, (1, 2)),
            ("a\n", 2..9, (2, 1)),
            ("é", 1..2, (1, 1)),
        ] {
            let error = error(text, once(span));
            let problem = &error.problems()[0];
            assert_eq!(
                (problem.line(), problem.column()),
                (Some(position.0), Some(position.1)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn further_problems_are_counted() {
        let text = "x\n".repeat(3_000);
        let spans = (0..2_500).map(|line| 2 * line..2 * line + 1);
        let error = error(&text, spans);
        assert_eq!((error.problems().len(), error.more()), (20, 2_480));
        assert!(error.to_string().ends_with("\nand 2480 more"));
    }

    #[test]
    fn problem_that_was_found_twice_is_told_once() {
        let error = error("a\nb", [2..3, 0..1, 2..3, 0..1]);
        assert_eq!((error.problems().len(), error.more()), (2, 0));
        assert_eq!(
            [0, 1].map(|position| error.problems()[position].line()),
            [Some(1), Some(2)]
        );
        assert!(!error.to_string().contains("more"));
    }

    #[test]
    fn problems_without_a_place_come_first() {
        let problems = Problems::default();
        assert!(!problems.are_there() && !problems.are_full());
        problems.add(Some(0..1), "here");
        problems.add(None, "somewhere");
        assert!(problems.are_there());
        let error = problems.into_error(&"f".into(), "a");
        let messages: Vec<_> = error.problems().iter().map(Problem::message).collect();
        assert_eq!(messages, ["somewhere", "here"]);
        assert_eq!(
            (error.problems()[0].line(), error.problems()[0].column()),
            (None, None)
        );
        assert_eq!(
            error.to_string(),
            "f: somewhere\nf:1:1: here\n  |\n1 | a\n  | ^"
        );
    }

    #[test]
    fn errors_are_equal_that_say_the_same() {
        let spans = |count: usize| (0..count).map(|position| position..position + 1);
        let (text, one) = ("a".repeat(40), |message: &str| {
            RulesError::one(&"f".into(), message.to_owned())
        });
        assert_eq!(error(&text, spans(20)), error(&text, spans(20)));
        assert_ne!(error(&text, spans(20)), error(&text, spans(21)), "one more");
        assert_eq!(
            [20, 21].map(|count| error(&text, spans(count)).more()),
            [0, 1]
        );
        assert!(one("a") == one("a") && one("a") != one("b"));
        let unread = RulesError::unread(&"f".into(), io::Error::other("gone"));
        assert_eq!(
            unread,
            one("the file cannot be read: gone"),
            "whatever the source is"
        );
        assert!(unread.source().is_some() && one("a").source().is_none());
    }

    #[test]
    fn line_of_a_hundred_characters_is_shown_whole() {
        let line = |length: usize, position: usize| {
            let shown = error(&"a".repeat(length), once(position..length)).to_string();
            shown.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let all = "a".repeat(100);
        assert_eq!(
            line(100, 0),
            [format!("1 | {all}"), format!("  | {}", "^".repeat(100))]
        );
        assert_eq!(
            line(101, 0),
            [format!("1 | {all}…"), format!("  | {}", "^".repeat(100))]
        );
        let [shown, caret] = &line(300, 250)[..] else {
            panic!("two lines")
        };
        assert_eq!(*shown, format!("1 | …{}", "a".repeat(100)));
        assert_eq!(*caret, format!("  | {}{}", " ".repeat(51), "^".repeat(50)));
        let [shown, caret] = &line(300, 100)[..] else {
            panic!("two lines")
        };
        assert_eq!(*shown, format!("1 | …{all}…"));
        assert_eq!(*caret, format!("  | {}{}", " ".repeat(51), "^".repeat(50)));
    }

    #[test]
    fn gutter_is_as_wide_as_the_number_of_the_line() {
        let text = "a\n".repeat(100);
        assert_eq!(
            error(&text, once(198..199)).to_string(),
            "f:100:1: 198..199 is wrong\n    |\n100 | a\n    | ^"
        );
        assert_eq!(
            error("a\nbc", once(0..4)).to_string(),
            "f:1:1: 0..4 is wrong\n  |\n1 | a\n  | ^"
        );
    }
}
