use super::*;

fn merged<const N: usize>(existing: [(&'static str, &str); N], wait_us: u64) -> Vec<(String, String)> {
    let mut headers = with(existing);
    let wait = Some(RetryAfter::from_micros(wait_us));
    let report = DescribedDecision { policies: &[], admitted: false, retry_after: wait, now_unix_us: NOW_US };
    write(&mut headers, &(Dialect::Draft11, None), &report);
    fields(&headers)
}

#[test]
fn later_of_two_waits_stays_alone() {
    assert_eq!(merged([], 5_000_000), owned([("retry-after", "5")]));
    assert_eq!(merged([("retry-after", "4")], 5_000_000), owned([("retry-after", "5")]));
    assert_eq!(merged([("retry-after", "6")], 5_000_000), owned([("retry-after", "6")]));
    let several = [("retry-after", "1"), ("retry-after", "9"), ("retry-after", "2")];
    assert_eq!(merged(several, 5_000_000), owned([("retry-after", "9")]));
    let huge = "99999999999999999999999999";
    assert_eq!(merged([("retry-after", huge)], 5_000_000), owned([("retry-after", huge)]));
}

#[test]
fn date_stays_only_if_it_is_provably_later() {
    // NOW_US is 09:32:54.
    let date = "Fri, 20 Nov 2026 09:33:00 GMT";
    assert_eq!(merged([("retry-after", date)], 6_000_000), owned([("retry-after", date)]));
    assert_eq!(merged([("retry-after", date)], 6_000_001), owned([("retry-after", "7")]));
    // Half a second later the date is 5.5 seconds away, which is not provably six.
    let half_past = |wait_us| {
        let mut headers = with([("retry-after", date)]);
        let retry_after = Some(RetryAfter::from_micros(wait_us));
        let report = DescribedDecision { policies: &[], admitted: false, retry_after, now_unix_us: NOW_US + 500_000 };
        write(&mut headers, &(Dialect::Draft11, None), &report);
        fields(&headers)
    };
    assert_eq!(half_past(6_000_000), owned([("retry-after", "6")]));
    assert_eq!(half_past(5_000_000), owned([("retry-after", date)]));
    // Recipients must read the two obsolete formats as well (RFC 9110, section 5.6.7).
    for obsolete in ["Friday, 20-Nov-26 09:33:00 GMT", "Fri Nov 20 09:33:00 2026"] {
        assert_eq!(merged([("retry-after", obsolete)], 6_000_000), owned([("retry-after", obsolete)]));
        assert_eq!(merged([("retry-after", obsolete)], 6_000_001), owned([("retry-after", "7")]));
    }
}

#[test]
fn value_that_is_no_wait_is_replaced() {
    for theirs in ["", "-5", "1.5", "soon", "5s", "+9"] {
        assert_eq!(merged([("retry-after", theirs)], 1), owned([("retry-after", "1")]), "{theirs}");
    }
}

#[test]
fn admitted_response_keeps_its_own_retry_after() {
    let mut headers = with([("retry-after", "7")]);
    let report =
        DescribedDecision { policies: &[], admitted: true, retry_after: Some(RetryAfter::MAX), now_unix_us: NOW_US };
    write(&mut headers, &(Dialect::Draft11, None), &report);
    assert_eq!(fields(&headers), owned([("retry-after", "7")]));
}

/// Seconds since the Unix epoch.
fn date(value: &[u8]) -> Option<u64> {
    let since_epoch_us = crate::headers::retry_after::wait_micros(&HeaderValue::from_bytes(value).ok()?, 0)?;
    Some(since_epoch_us / 1_000_000)
}

#[test]
fn dates_are_read_to_the_second() {
    assert_eq!(date(b"Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    assert_eq!(date(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
    assert_eq!(date(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
    assert_eq!(date(b"Sun Nov  6 08:49:37 1994"), Some(784_111_777));
    assert_eq!(date(b"Thu, 29 Feb 2024 12:00:00 GMT"), Some(1_709_208_000));
    assert_eq!(date(b"Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200));
    assert_eq!(date(b"Mon, 01 Mar 2100 00:00:00 GMT"), Some(4_107_542_400));
    assert_eq!(date(b"Fri, 31 Dec 9999 23:59:59 GMT"), Some(253_402_300_799));
}

#[test]
fn anything_else_is_no_date() {
    let wrong: [&[u8]; 11] = [
        b"",
        b"Sun",
        b"Sun, 06 Nov 1994 08:49:37 UTC",
        b"Sun, 06 Nov 1994 24:00:00 GMT",
        b"Sun, 00 Nov 1994 08:49:37 GMT",
        b"Sun, 06 Foo 1994 08:49:37 GMT",
        b"Sun, 06 Nov 0000 08:49:37 GMT",
        b"Mon, 06 Nov 1994 08:49:37 GMT",
        b"Fri, 30 Feb 2024 12:00:00 GMT",
        b"Wed, 31 Dec 1969 23:59:59 GMT",
        b"Sun, 06 Nov 1994 08:49:37 \xff",
    ];
    for value in wrong {
        assert_eq!(date(value), None, "{}", value.escape_ascii());
    }
}

/// The longest readable wait stays, wherever an unreadable one stands.
#[test]
fn unreadable_waits_hide_no_readable_one() {
    for lines in [["soon", "9", "7"], ["9", "soon", "7"], ["7", "9", "soon"]] {
        let mut headers = with(lines.map(|line| ("retry-after", line)));
        answer(&mut headers, Dialect::Draft11, &[shut(terms("a", 1, 1), 8_000_000)]);
        assert_eq!(combined(&headers, "retry-after"), b"9", "{lines:?}");
    }
}

proptest! {
    #[test]
    fn no_date_makes_the_reader_panic(
        at in 0_usize..29,
        byte in 0x20_u8..0x7f,
        digits in "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
    ) {
        let mut mutated = b"Fri, 31 Dec 9999 23:59:59 GMT".to_owned();
        mutated[at] = byte;
        date(&mutated);
        date(digits.as_bytes());
    }

    #[test]
    fn attack_44_retry_after_is_never_early_zero_or_fractional(
        waits in prop::collection::vec(any_number(), 1..5),
        dialect in prop::sample::select(DIALECTS.to_vec()),
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
