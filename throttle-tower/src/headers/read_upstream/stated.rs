//! Reads how much of an upstream may still be used, in any spelling.

use std::time::Duration;

use http::HeaderMap;

use super::allowance::UpstreamLimits;
use super::quota::UpstreamQuota;
use crate::headers::{names, structured};

/// The strictest statements of all headers.
pub(crate) fn stated(headers: &HeaderMap) -> UpstreamLimits {
    let mut limits = UpstreamLimits::default();
    let mut add_counts = |counts: [Option<u64>; 2]| {
        if let [Some(remaining), Some(seconds)] = counts {
            limits.add(remaining, Duration::from_secs(seconds));
        }
    };
    for line in headers.get_all(&names::RATELIMIT) {
        let members = structured::list_counts(line.as_bytes(), [b"r", b"t"]);
        members.into_iter().flatten().for_each(&mut add_counts);
    }
    // Drafts 07 and earlier write what is left and the reset into one header.
    let keys = [&b"remaining"[..], b"reset"];
    let counts = structured::dictionary_counts(headers, &names::RATELIMIT, keys);
    counts.into_iter().for_each(add_counts);
    for (name, value) in headers {
        if let Some(quota) = UpstreamQuota::read(name, value) {
            quota.add_to(&mut limits, headers);
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName};

    use super::super::allowance::Allowance;
    use super::stated;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())
        };
        let date = ("date", "Sat, 21 Nov 2026 12:00:00 GMT");
        lines.iter().chain([&date]).map(line).collect()
    }

    fn read(lines: &[(&str, &str)]) -> Option<(u64, u64)> {
        let read = stated(&headers(lines)).allowance;
        read.map(|Allowance { remaining, within }| (remaining, within.as_millis() as u64))
    }

    #[test]
    fn upstream_is_read_in_every_dialect() {
        assert_eq!(read(&[("ratelimit", r#""a";r=7;t=10"#)]), Some((7, 10_000)));
        assert_eq!(
            read(&[("ratelimit", "limit=10, remaining=3, reset=5")]),
            Some((3, 5_000))
        );
        let trio = [
            ("ratelimit-limit", "10"),
            ("ratelimit-remaining", "2"),
            ("ratelimit-reset", "9"),
        ];
        assert_eq!(read(&trio), Some((2, 9_000)));
        let x = |reset| {
            [
                ("x-ratelimit-limit", "60"),
                ("x-ratelimit-remaining", "4"),
                ("x-ratelimit-reset", reset),
            ]
        };
        assert_eq!(read(&x("30")), Some((4, 30_000)));
        assert_eq!(
            read(&x("1795262460")),
            Some((4, 60_000)),
            "seconds since 1970"
        );
        assert_eq!(
            read(&x("1795262460500")),
            Some((4, 60_500)),
            "milliseconds since 1970"
        );
        assert_eq!(
            read(&x("1795262000")),
            Some((4, 0)),
            "an instant that has passed"
        );
        assert_eq!(
            read(&x("999999999")),
            Some((4, 999_999_999_000)),
            "a wait of thirty years"
        );
        let drafts = [
            ("ratelimit-limit", "60"),
            ("ratelimit-remaining", "4"),
            ("ratelimit-reset", "1795262460"),
        ];
        assert_eq!(
            read(&drafts),
            Some((4, 60_000)),
            "GitLab and others send an instant"
        );
        assert_eq!(read(&x("1000000000")), Some((4, 0)), "an instant in 2001");
        assert_eq!(
            read(&x("999999999999")),
            Some((4, 998_204_737_599_000)),
            "far from now, in seconds"
        );
        assert_eq!(
            read(&x("1000000000000")),
            Some((4, 0)),
            "the same in milliseconds"
        );
    }

    #[test]
    fn strictest_policy_of_an_upstream_counts() {
        assert_eq!(
            read(&[("ratelimit", r#""a";r=100;t=10, "b";r=5;t=1"#)]),
            Some((5, 1_000))
        );
        assert_eq!(
            read(&[
                ("ratelimit", r#""a";r=5;t=10"#),
                ("ratelimit", r#""b";r=0;t=1"#)
            ]),
            Some((0, 1_000))
        );
        assert_eq!(
            read(&[
                ("ratelimit", r#""b";r=0;t=1"#),
                ("ratelimit", r#""a";r=5;t=10"#)
            ]),
            Some((0, 1_000))
        );
        assert_eq!(
            read(&[("ratelimit", r#""a";r=0;t=1, "b";r=0;t=30"#)]),
            Some((0, 30_000))
        );
        assert_eq!(
            read(&[("ratelimit", r#" "a"; r=5; t=5, "b";r=10;t=10"#)]),
            Some((5, 5_000)),
            "the first of equals"
        );
        let trio = [
            ("ratelimit-limit", "10"),
            ("ratelimit-remaining", " 2 "),
            ("ratelimit-reset", "9"),
        ];
        let own = [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "1"),
            ("x-ratelimit-reset", "9"),
        ];
        let dictionary = [("ratelimit", " limit=10,\tremaining=3, reset=9")];
        assert_eq!(read(&[&trio[..], &own].concat()), Some((1, 9_000)));
        assert_eq!(read(&[&trio[..], &dictionary].concat()), Some((2, 9_000)));
        assert_eq!(read(&dictionary), Some((3, 9_000)));
        assert_eq!(
            read(&[("ratelimit", r#""a";r=0;t=0, "b";r=1;t=60"#)]),
            Some((1, 60_000)),
            "over already"
        );
        assert_eq!(read(&[("ratelimit", r#""a";r=0;t=0"#)]), None);
        // Less that remains is stricter, for however short a time.
        let (much, little) = (r#""much";r=50;t=100"#, r#""little";r=5;t=1"#);
        for line in [[much, little], [little, much]] {
            assert_eq!(
                read(&line.map(|member| ("ratelimit", member))),
                Some((5, 1_000))
            );
        }
        let list = [("ratelimit", r#""a";r=10;t=4"#)];
        assert_eq!(read(&[&list[..], &own].concat()), Some((1, 9_000)));
        let soon = [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "1"),
            ("x-ratelimit-reset", "1795262400500"),
        ];
        assert_eq!(
            read(&[&list[..], &soon].concat()),
            Some((1, 500)),
            "half a second a unit"
        );
    }

    #[test]
    fn unreadable_headers_of_an_upstream_are_ignored() {
        for value in [
            "",
            "a",
            r#""a";r=-1;t=1"#,
            r#""a";r=1"#,
            r#""a";r=1;t=x"#,
            "remaining=1",
            "10;w=1",
        ] {
            assert_eq!(read(&[("ratelimit", value)]), None, "{value:?}");
        }
        assert_eq!(
            read(&[
                ("x-ratelimit-remaining", "1"),
                ("x-ratelimit-reset", "soon")
            ]),
            None
        );
    }

    /// A line is read down to its last byte, or not at all.
    #[test]
    fn header_of_an_upstream_with_a_malformed_end_is_ignored() {
        let trio = |remaining: &str, reset: &str| {
            read(&[
                ("ratelimit-limit", "10"),
                ("ratelimit-remaining", remaining),
                ("ratelimit-reset", reset),
            ])
        };
        for end in [
            ",",
            " ,",
            ", ",
            " x=1",
            "=1",
            ";",
            ";=1",
            ", =1",
            ", limit=",
            "\"",
            ", \"a\";r=1;t=1",
        ] {
            let line = |whole: &str| format!("{whole}{end}");
            assert_eq!(
                read(&[("ratelimit", &line("limit=10, remaining=3, reset=5"))]),
                None,
                "{end:?}"
            );
            let further = line("w=1");
            let lines = [
                ("ratelimit", "limit=10, remaining=3, reset=5"),
                ("ratelimit", &further),
            ];
            assert_eq!(read(&lines), None, "{end:?} in a further line");
            assert_eq!(trio(&line("3"), "5"), None, "{end:?}");
            assert_eq!(trio("3", &line("5")), None, "{end:?}");
        }
        assert_eq!(
            read(&[
                ("ratelimit", "limit=10, remaining=3, reset=5"),
                ("ratelimit", "w=1")
            ]),
            Some((3, 5_000))
        );
        assert_eq!(trio("3;a", "5; b=1"), Some((3, 5_000)));
        for end in [",", " x", "=1", ";", ", a"] {
            let line = format!(r#""a";r=5;t=1{end}"#);
            assert_eq!(read(&[("ratelimit", &line)]), None, "{line}");
        }
    }

    /// What is left and when it resets is enough. The limit may be missing, and whatever it says is
    /// ignored.
    #[test]
    fn what_is_left_and_its_reset_are_enough_and_neither_is_alone() {
        for [limit, remaining, reset] in [
            [
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
            ],
            [
                "x-rate-limit-limit",
                "x-rate-limit-remaining",
                "x-rate-limit-reset",
            ],
            ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
        ] {
            for limit in [
                vec![],
                vec![(limit, "10")],
                vec![(limit, "ten")],
                vec![(limit, "1"), (limit, "2")],
            ] {
                let with = |lines: &[(&str, &str)]| read(&[&limit[..], lines].concat());
                assert_eq!(
                    with(&[(remaining, "4"), (reset, "30")]),
                    Some((4, 30_000)),
                    "{limit:?}"
                );
                assert_eq!(
                    with(&[(remaining, "4.0"), (reset, "30.25")]),
                    Some((4, 30_250)),
                    "{limit:?}"
                );
                for incomplete in [
                    &[(remaining, "4")][..],
                    &[(reset, "30")],
                    &[(remaining, "4"), (reset, "soon")],
                    &[(remaining, "few"), (reset, "30")],
                    &[(remaining, "-1"), (reset, "30")],
                    &[(remaining, "4"), (reset, "-30")],
                    &[],
                ] {
                    assert_eq!(with(incomplete), None, "{limit:?} {incomplete:?}");
                }
            }
        }
        for line in [
            "limit=10, remaining=4, reset=30",
            "remaining=4, reset=30",
            "limit, remaining=4, reset=30",
        ] {
            assert_eq!(read(&[("ratelimit", line)]), Some((4, 30_000)), "{line}");
        }
        for line in [
            "limit=10, reset=30",
            "limit=10, remaining=4",
            "remaining=4, reset=-1",
            "remaining=4.0, reset=1",
        ] {
            assert_eq!(read(&[("ratelimit", line)]), None, "{line}");
        }
    }

    /// As where a gateway adds its own headers to those of the API.
    #[test]
    fn of_repeated_headers_the_stricter_counts() {
        let lines = |[one, other]: [&'static str; 2], resets: [&'static str; 2]| {
            let [reset, another] = resets.map(|reset| ("x-ratelimit-reset", reset));
            read(&[
                ("x-ratelimit-remaining", one),
                ("x-ratelimit-remaining", other),
                reset,
                another,
            ])
        };
        assert_eq!(lines(["7", "0"], ["30", "5"]), Some((0, 30_000)));
        assert_eq!(lines(["0", "7"], ["5", "30"]), Some((0, 30_000)));
        assert_eq!(lines(["7", "few"], ["soon", "5"]), Some((7, 5_000)));
    }

    #[test]
    fn fractions_of_a_unit_are_not_left() {
        for (remaining, expected) in [
            ("0.0", 0),
            ("0.9", 0),
            ("0.9999999999999", 0),
            ("1.5", 1),
            (".5", 0),
        ] {
            let lines = [
                ("x-ratelimit-remaining", remaining),
                ("x-ratelimit-reset", "2"),
            ];
            assert_eq!(read(&lines), Some((expected, 2_000)), "{remaining}");
        }
        for remaining in ["", ".", "0.0.0", "1e3", "0,0", "0x0", "\u{bd}"] {
            assert_eq!(
                read(&[
                    ("x-ratelimit-remaining", remaining),
                    ("x-ratelimit-reset", "2")
                ]),
                None,
                "{remaining}"
            );
        }
    }
}
