//! The forms of texts are those that the reader accepts.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::select;
use regex::Regex;

use super::generator::patterns;
use crate::Rules;
use crate::tests::registry;

/// A form, a limit in which `@` has it, and pieces of which texts are made that have it or nearly
/// do.
struct Form {
    pattern: Regex,
    limit: &'static str,
    pieces: &'static [&'static str],
}

static FORMS: LazyLock<Vec<Form>> = LazyLock::new(forms);

/// What no form tells: whether a name is that of a method, and what the bits of an address are.
const NOT_IN_A_FORM: [&str; 2] = ["no method has this name", "it has bits of a host"];

fn forms() -> Vec<Form> {
    let form = |pattern: String, limit, pieces| {
        let pattern = Regex::new(&format!("^(?:{pattern})$")).unwrap();
        Form {
            pattern,
            limit,
            pieces,
        }
    };
    vec![
        form(
            patterns::rate(),
            "fixed-window = { rate = @ }",
            &[
                "1", "20", "0", "/", "/", "1/", " per ", "per", " ", "\t", "s", "sec", "secs",
                "second", "seconds", "min", "mins", "m", "hr", "hrs", "h", "d", "day", "days",
                "µs", "us", "ms", "micro", "-", "+", ".",
            ],
        ),
        form(
            patterns::duration(),
            "gcra = { rate = \"1/s\" }\nwait-up-to = @",
            &[
                "1", "0", "20", " ", "s", "secs", "second", "minutes", "hr", "h", "day", "µs",
                "us", "ms", "-", "/", "m", "d",
            ],
        ),
        form(
            patterns::shift(),
            "fixed-window = { rate = \"1/d\", offset = @ }",
            &["1", "0", "20", " ", "s", "h", "m", "-", "-", "+", "days"],
        ),
        form(
            patterns::utc_offset(),
            "calendar-quota = { count = 1, per = \"day\", utc-offset = @ }",
            &[
                "+", "-", "00", "0", "13", "14", "15", ":", ":59", ":60", ":00", "+01:30",
                "-14:00", "+14:01",
            ],
        ),
        form(
            patterns::printable(),
            "gcra = { rate = \"1/s\" }\nunit = @",
            &["a", "~", " ", "ä", "\t", "0123456789abcdef0123"],
        ),
        form(
            format!("open|closed|{}", patterns::SHARE),
            "gcra = { rate = \"1/s\" }\non-error = @",
            &[
                "local/", "local/", "local", "4", "0", "+", "-", "17", "open", " ",
            ],
        ),
        form(
            patterns::header_key(),
            "gcra = { rate = \"1/s\" }\nby = @",
            &["header:", "header:", "x", "-", "_", " ", "ä", ":", "Y", "~"],
        ),
        form(
            patterns::METHOD.to_owned(),
            "gcra = { rate = \"1/s\" }\nmatch.methods = [@]",
            &["GET", "X", "-", "Q", "get", " ", "_", "7", "/"],
        ),
        form(
            patterns::route(),
            "gcra = { rate = \"1/s\" }\nmatch.routes = [@]",
            &[
                "/", "/", "/a", "/{id}", "/{*rest}", "{", "}", "{id}", "{*rest}", ":", "*", "{{",
                "}}", "?", "#", "b", ".",
            ],
        ),
        form(
            patterns::path(),
            "gcra = { rate = \"1/s\" }\nmatch.paths = [@]",
            &[
                "/", "/", "/a", "/*", "/**", ".", "..", "{", ":", "?", "%", "b", "*", "#",
            ],
        ),
        form(
            patterns::network(),
            "gcra = { rate = \"1/s\" }\n[client-ip]\nsource = \"forwarded\"\ntrust-everyone = \
                true\ntrusted = [@]",
            &[
                "10.0.0.0", "0.0.0.0", "/", "/0", "/32", "/33", "/00", "1", "255", "256", ".", "0",
                "a", " ", "-",
            ],
        ),
        form(
            patterns::host(),
            "gcra = { rate = \"1/s\" }\nmatch.hosts = [@]",
            &[
                "a", "example", ".", "*.", "*.", "-", "_", ":", "/", "ä", "com", "7", "@", "*",
                "::1", "[::1]",
            ],
        ),
    ]
}

fn any_text() -> impl Strategy<Value = (usize, String)> {
    (0..FORMS.len()).prop_flat_map(|number| {
        let pieces = prop::collection::vec(select(FORMS[number].pieces), 0..8);
        (Just(number), pieces.prop_map(|pieces| pieces.concat()))
    })
}

/// What is wrong with a limit that has the text, or nothing.
fn problem(form: &Form, text: &str) -> Option<String> {
    let key = if form.limit.contains("by = ") {
        ""
    } else {
        "by = \"constant\""
    };
    let limit = form
        .limit
        .replace('@', &serde_json::to_string(text).unwrap());
    let document = format!("version = 1\n[[limit]]\nname = \"a\"\n{key}\n{limit}");
    Rules::from_str("f", &document, registry())
        .err()
        .map(|error| error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_has_the_form_if_the_reader_accepts_it(texts in prop::collection::vec(any_text(), 40)) {
        for (number, text) in texts {
            let form = &FORMS[number];
            let (has_form, problem) = (form.pattern.is_match(&text), problem(form, &text));
            // How large a number may be is no form either.
            let is_large = text.as_bytes().windows(5).any(|digits| digits.iter().all(u8::is_ascii_digit));
            let is_known = |problem: &String| NOT_IN_A_FORM.iter().any(|known| problem.contains(known));
            if !is_large && !problem.as_ref().is_some_and(is_known) {
                prop_assert_eq!(has_form, problem.is_none(), "{:?} in {}: {:?}", text, form.limit, problem);
            }
        }
    }
}
