//! Files that are written to cost much are refused at a small price.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::{Registry, Rules, shown};

const MIB: usize = 1 << 20;

fn refusal(text: &str) -> String {
    Rules::from_str("f", text, Registry::new())
        .unwrap_err()
        .to_string()
}

#[test]
fn mebibyte_of_nesting_is_refused_in_fifty_milliseconds() {
    for text in [
        format!("a={}", "[".repeat(MIB - 2)),
        format!("a={}{}", "[".repeat(MIB / 2 - 1), "]".repeat(MIB / 2 - 1)),
        format!("a{}=1", ".a".repeat(MIB / 2 - 2)),
        format!("[a{}]", ".a".repeat(MIB / 2 - 2)),
        "a={".repeat(MIB / 3),
        "[[a]]\n".repeat(10) + &"{a=[".repeat(MIB / 4 - 20),
    ] {
        assert!(text.len() <= MIB);
        // The machine may be busy: what the check takes is shown by an attempt that nothing
        // disturbs.
        let in_time = (0..50).any(|_| {
            let start = Instant::now();
            assert!(refusal(&text).contains("deeper than 32"));
            start.elapsed() < Duration::from_millis(50)
        });
        assert!(in_time, "more than 50 ms for {:?}", &text[..20]);
    }
}

#[test]
fn nesting_at_the_end_of_a_mebibyte_is_found() {
    let text = format!("{}{}", "\n".repeat(MIB - 100), "[".repeat(100));
    assert!(refusal(&text).starts_with("f:1048477:33: the nesting is deeper than 32"));
}

#[test]
fn too_many_limits_are_refused_unread() {
    let text = |count: usize| {
        let limit = |n| {
            format!("[[limit]]\nname = \"{n}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n")
        };
        "version = 1\n".to_owned() + &(0..count).map(limit).collect::<String>()
    };
    assert!(Rules::from_str("f", &text(1_023), Registry::new()).is_ok());
    assert!(refusal(&text(1_024)).contains("there are 1024 limits: a layer decides at most 1023"));
    let many = "version = 1\n".to_owned() + &"[[limit]]\n".repeat(10_001);
    assert!(refusal(&many).contains("there are 10001 limits"));
    assert!(
        refusal(&many).starts_with("f:1025:1: "),
        "at the first that is one too many"
    );
}

#[test]
fn every_unknown_name_that_is_shown_is_told_what_there_is() {
    let mentions: String = (0..25).map(|n| format!("\"x{n}\",")).collect();
    let limit = "[[limit]]\nname = \"a\"\nby = \"constant\"\ngcra = { rate = \"1/s\" }\n";
    let text = format!("version = 1\ncompose = [{mentions}]\n{limit}");
    let error = Rules::from_str("f", &text, Registry::new()).unwrap_err();
    assert_eq!((error.problems().len(), error.more()), (20, 5));
    for (place, problem) in error.problems().iter().enumerate() {
        let message =
            format!("compose[{place}] is \"x{place}\": no limit has this name; there are a");
        assert_eq!(problem.message(), message);
    }
}

#[test]
fn of_names_that_are_as_near_the_same_one_is_suggested_each_time() {
    let limit =
        |n| format!("[[limit]]\nname = \"l{n}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n");
    let text = format!(
        "version = 1\ncompose = [\"lx\"]\n{}",
        (0..10).rev().map(limit).collect::<String>()
    );
    for _ in 0..20 {
        let error = Rules::from_str("f", &text, Registry::new()).unwrap_err();
        let message = "compose[0] is \"lx\": no limit has this name; did you mean \"l0\"?";
        assert_eq!(error.problems()[0].message(), message);
    }
}

#[test]
fn file_in_which_everything_is_wrong_has_twenty_problems_and_a_count() {
    let names: String = (0..30_000).map(|n| format!("n{n} = {n}\n")).collect();
    let error = Rules::from_str("f", &names, Registry::new()).unwrap_err();
    assert_eq!(error.problems().len(), 20);
    assert_eq!(
        error.more(),
        30_002 - 20,
        "the missing version and the missing limits are two more"
    );
    let mentions: String = (0..50_000).map(|n| format!("\"x{n}\",")).collect();
    let limits = "[[limit]]\nname = \"a\"\nby = \"constant\"\ngcra = { rate = \"1/s\" }\n";
    let error = refusal(&format!("version = 1\ncompose = [{mentions}]\n{limits}"));
    assert!(error.ends_with(" more"), "{error}");
}

#[test]
fn thousand_unknown_names_are_compared_with_a_thousand_limits_in_seconds() {
    // All are three letters apart, so that none is told apart early.
    let name = |kind: char, n: usize| format!("{n:03}{}{kind}{kind}{kind}", "x".repeat(58));
    let limit = |n| {
        format!(
            "[[limit]]\nname = \"{}\"\nby = \"constant\"\ngcra = {{ rate = \"1/s\" }}\n",
            name('a', n)
        )
    };
    let limits: String = (0..1_000).map(limit).collect();
    let mentions: String = (0..1_000)
        .map(|n| format!("\"{}\",", name('b', n)))
        .collect();
    let start = Instant::now();
    let error = refusal(&format!("version = 1\ncompose = [{mentions}]\n{limits}"));
    assert!(
        error.contains("no limit has this name; there are "),
        "{error}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn messages_hold_no_control_characters() {
    let text = "version = \"\u{1b}\\u001b[31m\"\n\"\\u001b[2J\" = 1\n[[limit]]\nname \
        = \"\\u001b\"\nby = \"\\u0007\"\n";
    let limit = "version = 1\n[[limit]]\nby = \"constant\"\ngcra = { rate = \"1/s\" }\n";
    // TOML forbids the raw one; the escaped ones reach messages, and so does what TOML permits.
    for text in [
        text.to_owned(),
        text.replace('\u{1b}', ""),
        text.replace(['\u{1b}', '\u{7}'], "\u{202e}\u{2066}\u{2028}"),
        format!("{limit}name = \"a\"\nmatch = {{ routes = [\"/:\\u001b[2J\", \"/*\\u202e\"] }}"),
        format!("compose = [\"unknown\"]\n{limit}name = \"\\u001b\\u202e\""),
    ] {
        let error = refusal(&text);
        assert!(
            error.chars().all(|c| c == '\n' || shown::is_plain(c)),
            "{error:?}"
        );
    }
}

#[test]
fn files_that_end_anywhere_are_refused_without_a_panic() {
    let whole = include_str!("good/everything.toml");
    for end in (0..whole.len())
        .filter(|end| whole.is_char_boundary(*end))
        .step_by(7)
    {
        if let Err(error) = Rules::from_str("f", &whole[..end], super::bad::registry()) {
            assert!(!error.to_string().is_empty());
        }
    }
}

proptest! {
    #[test]
    fn file_with_random_edits_is_read_or_refused_where_it_is(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..30_usize, any::<prop::sample::Index>()), 1..6)
    ) {
        const PIECES: [&str; 26] = [
            "", "[", "]", "{", "}", "=", ".", ",", "\"", "'", "\n", "#", "-", "0", "1.5", "true", "{}", "[]",
            "[[limit]]\n", "[plans]\n", "name = \"x\"\n", "\"\"\"", "é", "\u{0}", "\u{feff}", "2099-01-01",
        ];
        let mut text: Vec<char> = include_str!("good/everything.toml").chars().collect();
        for (place, length, piece) in edits {
            let start = place.index(text.len());
            let end = text.len().min(start + length);
            text.splice(start..end, piece.get(&PIECES).chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = Rules::from_str("f", &text, super::bad::registry()) {
            prop_assert!(!error.problems().is_empty());
            for problem in error.problems() {
                let (line, column) = (problem.line().unwrap(), problem.column().unwrap());
                let found = text.split('\n').nth(line - 1);
                prop_assert!(found.is_some_and(|found| column <= found.chars().count() + 1), "{error}");
            }
        }
    }
}
