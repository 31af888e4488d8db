//! Headers about one policy that the response already has.

use super::*;

/// Ours: 5 of 10 left, reset in 3 seconds.
fn after<const N: usize>(
    dialect: Dialect,
    existing: [(&'static str, &str); N],
) -> Vec<(String, String)> {
    let mut headers = with(existing);
    answer(
        &mut headers,
        dialect,
        &[open(terms("ours", 10, 60), 5, 3_000_000)],
    );
    fields(&headers)
}

const X: Dialect = Dialect::XRateLimit(ResetFormat::DeltaSeconds);
const OURS_X: [(&str, &str); 3] = [
    ("x-ratelimit-limit", "10"),
    ("x-ratelimit-remaining", "5"),
    ("x-ratelimit-reset", "3"),
];

#[test]
fn stricter_set_stays_as_a_whole() {
    for remaining_reset in [
        ("4", "1"),
        ("5", "3"),
        ("5", "Thu, 01 Jan 2099 00:00:00 GMT"),
        ("0", "1s"),
    ] {
        let (remaining, reset) = remaining_reset;
        let theirs = [
            ("x-ratelimit-limit", "100"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-reset", reset),
        ];
        assert_eq!(after(X, theirs), owned(theirs));
    }
    let theirs = [
        ("ratelimit-limit", "100"),
        ("ratelimit-remaining", "4;x"),
        ("ratelimit-reset", "1"),
    ];
    assert_eq!(after(Dialect::Draft06, theirs), owned(theirs));
    let theirs = [
        ("ratelimit", "limit=100, reset=1;a=b, x=(1"),
        ("ratelimit", "remaining=4"),
    ];
    assert_ne!(after(Dialect::Draft07, theirs), owned(theirs));
    let theirs = [
        ("ratelimit", "limit=100, reset=1;a=b, x"),
        ("ratelimit", "remaining=4"),
    ];
    assert_eq!(after(Dialect::Draft07, theirs), owned(theirs));
}

#[test]
fn looser_set_is_replaced_as_a_whole() {
    for (remaining, reset) in [("6", "1"), ("5", "2")] {
        let theirs = [
            ("x-ratelimit-limit", "100"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-reset", reset),
        ];
        assert_eq!(after(X, theirs), owned(OURS_X));
    }
    let theirs = [
        ("ratelimit-limit", "100"),
        ("ratelimit-remaining", "6"),
        ("ratelimit-reset", "1"),
        ("ratelimit-policy", "100;w=1"),
    ];
    assert_eq!(
        after(Dialect::Draft06, theirs),
        owned([
            ("ratelimit-limit", "10"),
            ("ratelimit-policy", "10;w=60"),
            ("ratelimit-remaining", "5"),
            ("ratelimit-reset", "3"),
        ])
    );
}

#[test]
fn incomplete_or_unreadable_set_is_replaced() {
    assert_eq!(after(X, [("x-ratelimit-remaining", "0")]), owned(OURS_X));
    assert_eq!(
        after(
            X,
            [("x-ratelimit-limit", "1"), ("x-ratelimit-remaining", "-1")]
        ),
        owned(OURS_X)
    );
    assert_eq!(
        after(
            X,
            [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")]
        ),
        owned(OURS_X)
    );
    assert_eq!(
        after(
            X,
            [("x-ratelimit-limit", "1"), ("x-ratelimit-remaining", "0")]
        ),
        owned(OURS_X)
    );
    let twice = [
        ("x-ratelimit-limit", "9"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-remaining", "1"),
        ("x-ratelimit-reset", "1"),
    ];
    assert_eq!(after(X, twice), owned(OURS_X));
    // The drafts allow no other reset than a number of seconds.
    let theirs = |reset| {
        [
            ("ratelimit-limit", "1"),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", reset),
        ]
    };
    for dialect in [Dialect::Draft06, Dialect::Draft03] {
        assert_eq!(after(dialect, theirs("1")), owned(theirs("1")));
        for reset in ["Thu, 01 Jan 2099 00:00:00 GMT", "1s", ""] {
            let written = after(dialect, theirs(reset));
            assert!(
                written.contains(&("ratelimit-remaining".into(), "5".into())),
                "{dialect:?}, {reset}: {written:?}"
            );
            assert!(
                written.contains(&("ratelimit-reset".into(), "3".into())),
                "{dialect:?}, {reset}: {written:?}"
            );
        }
    }
    let ours = owned([
        ("ratelimit", "limit=10, remaining=5, reset=3"),
        ("ratelimit-policy", "10;w=60"),
    ]);
    for theirs in [
        "limit=1, reset=1",
        "limit=1, remaining=0",
        "remaining=0, reset=1",
        r#""a";r=0;t=1"#,
        "limit=1,",
    ] {
        assert_eq!(
            after(Dialect::Draft07, [("ratelimit", theirs)]),
            ours,
            "{theirs}"
        );
    }
}

/// As RFC 9651 asks for.
#[test]
fn last_of_repeated_dictionary_keys_counts() {
    let ours = "limit=10, remaining=5, reset=3";
    for (theirs, stays) in [
        ("limit=9, remaining=4, remaining=6, reset=3", false),
        ("limit=9, remaining=6, reset=3, remaining=4", true),
        ("limit=9, remaining=5, reset=2, reset=3", true),
        ("limit=9, reset=3, remaining=5, reset=2", false),
        ("limit=9, remaining=4, reset=3, remaining", false),
        ("limit=9, remaining, remaining=4, reset=3", true),
    ] {
        let written = after(Dialect::Draft07, [("ratelimit", theirs)]);
        assert_eq!(written[0].1, if stays { theirs } else { ours }, "{theirs}");
    }
}

#[test]
fn existing_policy_list_is_removed_with_its_set() {
    let mut headers = with([("ratelimit-policy", "100;w=1")]);
    let lines = [open(terms("ours", 10, 60), 5, 3_000_000)];
    let none = (Dialect::Draft07, None);
    write(
        &mut headers,
        &none,
        &HeaderContent {
            policies: &lines,
            admitted: true,
            retry_after: None,
            now_unix_us: NOW_US,
        },
    );
    assert_eq!(
        fields(&headers),
        owned([("ratelimit", "limit=10, remaining=5, reset=3")])
    );
}

/// Each of the three must be there once.
#[test]
fn header_of_a_set_that_occurs_twice_is_no_statement() {
    let complete = [
        ("x-ratelimit-limit", "9"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "9"),
    ];
    assert_eq!(after(X, complete), owned(complete));
    for twice in complete {
        let [limit, remaining, reset] = complete;
        assert_eq!(
            after(X, [limit, remaining, reset, twice]),
            owned(OURS_X),
            "{twice:?}"
        );
    }
}
