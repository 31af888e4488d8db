use super::*;

fn merged<const N: usize>(
    existing: [(&'static str, &str); N],
    wait_us: u64,
) -> Vec<(String, String)> {
    let mut headers = with(existing);
    let wait = Some(RetryAfter::from_micros(wait_us));
    let report = HeaderContent {
        policies: &[],
        admitted: false,
        retry_after: wait,
        now_unix_us: NOW_US,
    };
    write(&mut headers, &(Dialect::Draft11, None), &report);
    fields(&headers)
}

#[test]
fn later_of_two_waits_stays_alone() {
    let huge = "99999999999999999999999999";
    assert_eq!(
        merged([("retry-after", huge)], 5_000_000),
        owned([("retry-after", huge)])
    );
}

#[test]
fn date_stays_only_if_it_is_provably_later() {
    // NOW_US is 09:32:54.
    let date = "Fri, 20 Nov 2026 09:33:00 GMT";
    assert_eq!(
        merged([("retry-after", date)], 6_000_000),
        owned([("retry-after", date)])
    );
    assert_eq!(
        merged([("retry-after", date)], 6_000_001),
        owned([("retry-after", "7")])
    );
    // Half a second later the date is 5.5 seconds away, which is not provably six.
    let half_past = |wait_us| {
        let mut headers = with([("retry-after", date)]);
        let retry_after = Some(RetryAfter::from_micros(wait_us));
        let report = HeaderContent {
            policies: &[],
            admitted: false,
            retry_after,
            now_unix_us: NOW_US + 500_000,
        };
        write(&mut headers, &(Dialect::Draft11, None), &report);
        fields(&headers)
    };
    assert_eq!(half_past(6_000_000), owned([("retry-after", "6")]));
    assert_eq!(half_past(5_000_000), owned([("retry-after", date)]));
    // Recipients must read the two obsolete formats as well (RFC 9110, section 5.6.7).
    for obsolete in ["Friday, 20-Nov-26 09:33:00 GMT", "Fri Nov 20 09:33:00 2026"] {
        assert_eq!(
            merged([("retry-after", obsolete)], 6_000_000),
            owned([("retry-after", obsolete)])
        );
        assert_eq!(
            merged([("retry-after", obsolete)], 6_000_001),
            owned([("retry-after", "7")])
        );
    }
}

#[test]
fn value_that_is_no_wait_is_replaced() {
    for theirs in ["", "-5", "1.5", "soon", "5s", "+9"] {
        assert_eq!(
            merged([("retry-after", theirs)], 1),
            owned([("retry-after", "1")]),
            "{theirs}"
        );
    }
}

#[test]
fn admitted_response_keeps_its_own_retry_after() {
    let mut headers = with([("retry-after", "7")]);
    let report = HeaderContent {
        policies: &[],
        admitted: true,
        retry_after: Some(RetryAfter::MAX),
        now_unix_us: NOW_US,
    };
    write(&mut headers, &(Dialect::Draft11, None), &report);
    assert_eq!(fields(&headers), owned([("retry-after", "7")]));
}

/// The longest readable wait stays, wherever an unreadable one stands.
#[test]
fn unreadable_waits_hide_no_readable_one() {
    for lines in [["soon", "9", "7"], ["9", "soon", "7"], ["7", "9", "soon"]] {
        let mut headers = with(lines.map(|line| ("retry-after", line)));
        answer(
            &mut headers,
            Dialect::Draft11,
            &[shut(terms("a", 1, 1), 8_000_000)],
        );
        assert_eq!(combined(&headers, "retry-after"), b"9", "{lines:?}");
    }
}

proptest! {
    #[test]
    fn attack_44_retry_after_is_never_early_zero_or_fractional(
        waits in prop::collection::vec(any_number(), 1..5),
        dialect in prop::sample::select(Dialect::ALL),
    ) {
        let lines: Vec<PolicyStatus<'_>> = waits.iter().map(|us| shut(terms("a", 10, 1), *us)).collect();
        let mut headers = HeaderMap::new();
        answer(&mut headers, dialect, &lines);

        let text = String::from_utf8(combined(&headers, "retry-after")).unwrap();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        let seconds: u64 = text.parse().unwrap();
        prop_assert!(seconds >= 1);
        let longest = *waits.iter().max().unwrap();
        if longest > 1_000_000_000_000_000 {
            prop_assert_eq!(seconds, 1_000_000_000);
        } else {
            prop_assert!(seconds * 1_000_000 >= longest, "early");
            prop_assert!((seconds - 1) * 1_000_000 <= longest, "late by a second or more");
        }
        if dialect == Dialect::Draft11 {
            let told: List = parsed(&combined(&headers, "ratelimit"));
            prop_assert!(told.iter().all(|entry| count_of(entry, "t").unwrap() <= seconds));
        }
    }

    #[test]
    fn wait_is_the_maximum_of_ours_and_the_existing(
        ours in any_number(),
        theirs in prop::collection::vec(any_number(), 0..3),
    ) {
        let mut headers = HeaderMap::new();
        for seconds in &theirs {
            headers.append("retry-after", HeaderValue::from(*seconds));
        }
        answer(&mut headers, Dialect::Draft11, &[shut(terms("a", 1, 1), ours)]);
        let written: u64 = String::from_utf8(combined(&headers, "retry-after")).unwrap().parse().unwrap();
        let longest = theirs.iter().copied().chain([RetryAfter::from_micros(ours).seconds()]).max();
        prop_assert_eq!(Some(written), longest);
    }
}
