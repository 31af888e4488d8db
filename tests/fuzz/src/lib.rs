//! What the targets share: limits, and the names that rules may use.

pub mod limits;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use throttle_core::{ManualClock, MemoryBackend};
use throttle_rules::{Registry, Rules, RulesError};
use throttle_tower::Header;

/// A name of each kind, as in the good and the bad files of the tests.
pub fn registry() -> Registry {
    Registry::new()
        .key("api-key", Header::new("x-api-key"))
        .key_async("session", |_| async { Some(7) })
        .cost("tokens", |_| 1)
        .condition("internal", |_| false)
        .lookup("plan-of", |_| async { Some("free") })
        .refund("cached", |_, _| false)
}

pub fn rules(text: &str) -> Result<Rules, RulesError> {
    Rules::from_str("throttle.toml", text, registry())
}

/// A store whose clock stands still, so that what it says depends on the rules alone.
pub fn backend() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder()
        .max_keys(16)
        .clock(ManualClock::default())
        .build()
}

/// What a store has answered that does not wait.
pub fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

/// What must hold of every error about a text.
pub fn check_error(error: &RulesError, text: &str) {
    let problems = error.problems();
    assert!(
        (1..=RulesError::MAX_PROBLEMS).contains(&problems.len()),
        "{} problems",
        problems.len()
    );
    assert!(
        error.more() == 0 || problems.len() == RulesError::MAX_PROBLEMS,
        "{} more",
        error.more()
    );
    let lines: Vec<&str> = text.split('\n').collect();
    for problem in problems {
        let (line, column) = (
            problem.line().expect("a line"),
            problem.column().expect("a column"),
        );
        let found = lines
            .get(line - 1)
            .unwrap_or_else(|| panic!("there is no line {line}: {problem}"));
        assert!(
            (1..=found.chars().count() + 1).contains(&column),
            "there is no column {column}: {problem}"
        );
        assert!(!problem.message().is_empty());
    }
    let shown = error.to_string();
    assert!(shown.len() <= MOST_SHOWN, "{} bytes are shown", shown.len());
    let is_plain =
        |c: char| c == '\n' || matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1;
    assert!(
        shown.chars().all(is_plain),
        "a terminal would act on this: {shown:?}"
    );
}

/// Most bytes of an error: 20 problems, each with a message, a line of the file and a line with a
/// caret.
const MOST_SHOWN: usize = RulesError::MAX_PROBLEMS * 4_000;
