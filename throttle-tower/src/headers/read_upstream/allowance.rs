//! What an upstream says may still be used, in any dialect.

use std::cmp::Ordering;
use std::time::Duration;

use http::HeaderMap;

use crate::headers::existing::{Existing, existing_dictionary, existing_trio};
use crate::headers::{names, structured};

/// How much may still be used, and the time within which no more than that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) remaining: u64,
    pub(crate) within: Duration,
}

/// The strictest statement of all headers, in any dialect. The clock is read only if a header needs it.
pub(crate) fn allowance(headers: &HeaderMap, now_unix_us: impl Fn() -> u64) -> Option<Allowance> {
    let lists = headers.get_all(&names::RATELIMIT).into_iter().filter_map(|line| structured::list(line.as_bytes()));
    let members = lists.flatten().filter_map(|member| Some((member.count(b"r")?, member.count(b"t")?)));
    let named = members.map(|(remaining, seconds)| Allowance { remaining, within: Duration::from_secs(seconds) });
    let relative =
        |theirs: Existing| Some(Allowance { remaining: theirs.remaining, within: Duration::from_secs(theirs.reset?) });
    let older = [existing_dictionary(headers), existing_trio(headers, &names::IETF, structured::single_count)];
    let own = existing_trio(headers, &names::X, structured::single_count).and_then(|theirs| {
        let within = since_now(theirs.reset?, now_unix_us);
        Some(Allowance { remaining: theirs.remaining, within })
    });
    let all = named.chain(older.into_iter().flatten().filter_map(relative)).chain(own);
    // Nothing left for no time says nothing.
    all.filter(|told| told.remaining > 0 || !told.within.is_zero())
        .reduce(|strictest, next| if next.slowness(&strictest).is_gt() { next } else { strictest })
}

impl Allowance {
    /// Compares the paces that two allowances ask for; `Greater` is the slower one.
    fn slowness(&self, other: &Self) -> Ordering {
        match (self.remaining, other.remaining) {
            (0, 0) => self.within.cmp(&other.within),
            (own, others) => {
                let scaled = |within: Duration, by: u64| within.as_nanos().saturating_mul(u128::from(by));
                scaled(self.within, others).cmp(&scaled(other.within, own))
            }
        }
    }
}

/// `X-RateLimit-Reset` is a number of seconds from now, or an instant in seconds or milliseconds since 1970. No
/// standard says which, so a number that is too large for a wait is an instant.
fn since_now(reset: u64, now_unix_us: impl Fn() -> u64) -> Duration {
    let instant_us = match reset {
        0..1_000_000_000 => return Duration::from_secs(reset),
        1_000_000_000..1_000_000_000_000 => reset * 1_000_000,
        _ => reset.saturating_mul(1_000),
    };
    Duration::from_micros(instant_us.saturating_sub(now_unix_us()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName};

    use super::{Allowance, Ordering, allowance};
    use std::time::Duration;

    /// 2026-11-21T12:00:00Z.
    const NOW: u64 = 1_795_262_400_000_000;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        lines.iter().map(line).collect()
    }

    fn read(lines: &[(&str, &str)]) -> Option<(u64, u64)> {
        let read = allowance(&headers(lines), || NOW);
        read.map(|Allowance { remaining, within }| (remaining, within.as_millis() as u64))
    }

    #[test]
    fn upstream_is_read_in_every_dialect() {
        assert_eq!(read(&[("ratelimit", r#""a";r=7;t=10"#)]), Some((7, 10_000)));
        assert_eq!(read(&[("ratelimit", "limit=10, remaining=3, reset=5")]), Some((3, 5_000)));
        let trio = [("ratelimit-limit", "10"), ("ratelimit-remaining", "2"), ("ratelimit-reset", "9")];
        assert_eq!(read(&trio), Some((2, 9_000)));
        let x = |reset| [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", reset)];
        assert_eq!(read(&x("30")), Some((4, 30_000)));
        assert_eq!(read(&x("1795262460")), Some((4, 60_000)), "seconds since 1970");
        assert_eq!(read(&x("1795262460500")), Some((4, 60_500)), "milliseconds since 1970");
        assert_eq!(read(&x("1795262000")), Some((4, 0)), "an instant that has passed");
        assert_eq!(read(&x("999999999")), Some((4, 999_999_999_000)), "a wait of thirty years");
        let drafts = [("ratelimit-limit", "60"), ("ratelimit-remaining", "4"), ("ratelimit-reset", "1795262460")];
        assert_eq!(read(&drafts), Some((4, 1_795_262_460_000)), "never an instant in the drafts");
        assert_eq!(read(&x("1000000000")), Some((4, 0)), "an instant in 2001");
        assert_eq!(read(&x("999999999999")), Some((4, 998_204_737_599_000)), "far from now, in seconds");
        assert_eq!(read(&x("1000000000000")), Some((4, 0)), "the same in milliseconds");
    }

    #[test]
    fn strictest_policy_of_an_upstream_counts() {
        assert_eq!(read(&[("ratelimit", r#""a";r=100;t=10, "b";r=5;t=1"#)]), Some((5, 1_000)));
        assert_eq!(read(&[("ratelimit", r#""a";r=5;t=10"#), ("ratelimit", r#""b";r=0;t=1"#)]), Some((0, 1_000)));
        assert_eq!(read(&[("ratelimit", r#""b";r=0;t=1"#), ("ratelimit", r#""a";r=5;t=10"#)]), Some((0, 1_000)));
        assert_eq!(read(&[("ratelimit", r#""a";r=0;t=1, "b";r=0;t=30"#)]), Some((0, 30_000)));
        assert_eq!(read(&[("ratelimit", r#" "a"; r=5; t=5, "b";r=10;t=10"#)]), Some((5, 5_000)), "the first of equals");
        let trio = [("ratelimit-limit", "10"), ("ratelimit-remaining", " 2 "), ("ratelimit-reset", "9")];
        let own = [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "9")];
        let dictionary = [("ratelimit", " limit=10,\tremaining=3, reset=9")];
        assert_eq!(read(&[&trio[..], &own].concat()), Some((1, 9_000)));
        assert_eq!(read(&[&trio[..], &dictionary].concat()), Some((2, 9_000)));
        assert_eq!(read(&dictionary), Some((3, 9_000)));
        assert_eq!(read(&[("ratelimit", r#""a";r=0;t=0, "b";r=1;t=60"#)]), Some((1, 60_000)), "over already");
        assert_eq!(read(&[("ratelimit", r#""a";r=0;t=0"#)]), None);
        // Less that remains for a shorter time is not stricter.
        let (much, little) = (r#""much";r=50;t=100"#, r#""little";r=5;t=1"#);
        for line in [[much, little], [little, much]] {
            assert_eq!(read(&line.map(|member| ("ratelimit", member))), Some((50, 100_000)));
        }
        let list = [("ratelimit", r#""a";r=10;t=4"#)];
        assert_eq!(read(&[&list[..], &own].concat()), Some((1, 9_000)));
        let soon =
            [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1795262400500")];
        assert_eq!(read(&[&list[..], &soon].concat()), Some((1, 500)), "half a second a unit");
    }

    #[test]
    fn unreadable_headers_of_an_upstream_are_ignored() {
        for value in ["", "a", r#""a";r=-1;t=1"#, r#""a";r=1"#, r#""a";r=1;t=x"#, "remaining=1", "10;w=1"] {
            assert_eq!(read(&[("ratelimit", value)]), None, "{value:?}");
        }
        assert_eq!(read(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "soon")]), None);
    }

    /// A line is read down to its last byte, or not at all.
    #[test]
    fn header_of_an_upstream_with_a_malformed_end_is_ignored() {
        let trio = |remaining: &str, reset: &str| {
            read(&[("ratelimit-limit", "10"), ("ratelimit-remaining", remaining), ("ratelimit-reset", reset)])
        };
        for end in [",", " ,", ", ", " x=1", "=1", ";", ";=1", ", =1", ", limit=", "\"", ", \"a\";r=1;t=1"] {
            let line = |whole: &str| format!("{whole}{end}");
            assert_eq!(read(&[("ratelimit", &line("limit=10, remaining=3, reset=5"))]), None, "{end:?}");
            let further = line("w=1");
            let lines = [("ratelimit", "limit=10, remaining=3, reset=5"), ("ratelimit", &further)];
            assert_eq!(read(&lines), None, "{end:?} in a further line");
            assert_eq!(trio(&line("3"), "5"), None, "{end:?}");
            assert_eq!(trio("3", &line("5")), None, "{end:?}");
        }
        assert_eq!(read(&[("ratelimit", "limit=10, remaining=3, reset=5"), ("ratelimit", "w=1")]), Some((3, 5_000)));
        assert_eq!(trio("3;a", "5; b=1"), Some((3, 5_000)));
        for end in [",", " x", "=1", ";", ", a"] {
            let line = format!(r#""a";r=5;t=1{end}"#);
            assert_eq!(read(&[("ratelimit", &line)]), None, "{line}");
        }
    }

    /// The limit must be there, although its value is not used, and each number must be one.
    #[test]
    fn incomplete_set_of_an_upstream_is_ignored() {
        for [limit, remaining, reset] in [
            ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
            ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
        ] {
            let all = [(limit, "10"), (remaining, "4"), (reset, "30")];
            assert_eq!(read(&all), Some((4, 30_000)));
            for missing in 0..3 {
                let some: Vec<_> = all.iter().enumerate().filter(|(place, _)| *place != missing).collect();
                assert_eq!(read(&some.into_iter().map(|(_, line)| *line).collect::<Vec<_>>()), None, "{missing}");
            }
            assert_eq!(read(&[(limit, "10"), (remaining, "4"), (reset, "soon")]), None);
            assert_eq!(read(&[(limit, "10"), (remaining, "few"), (reset, "30")]), None);
            assert_eq!(read(&[(limit, "ten"), (remaining, "4"), (reset, "30")]), Some((4, 30_000)));
        }
        for line in
            ["remaining=4, reset=30", "limit=10, reset=30", "limit=10, remaining=4", "limit, remaining=4, reset=1"]
        {
            assert_eq!(read(&[("ratelimit", line)]), None, "{line}");
        }
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn of_equal_paces_the_first_counts_and_nothing_is_slower_than_nothing() {
        let of = |remaining, seconds| Allowance { remaining, within: Duration::from_secs(seconds) };
        for (one, other, slowness) in [
            (of(0, 5), of(0, 5), Ordering::Equal),
            (of(0, 6), of(0, 5), Ordering::Greater),
            (of(0, 1), of(9, 1_000), Ordering::Greater),
            (of(9, 1_000), of(0, 1), Ordering::Less),
            (of(2, 4), of(3, 6), Ordering::Equal),
            (of(2, 5), of(3, 6), Ordering::Greater),
            (of(2, 4), of(3, 7), Ordering::Less),
            (of(1 << 40, 1 << 41), of(1 << 40, (1 << 41) - 1), Ordering::Greater),
        ] {
            assert_eq!(one.slowness(&other), slowness, "{one:?} and {other:?}");
        }
    }
}
