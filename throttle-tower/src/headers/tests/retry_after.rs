use super::*;

fn merged<const N: usize>(existing: [(&'static str, &str); N], wait_us: u64) -> Vec<(String, String)> {
    let mut headers = with(existing);
    let wait = Some(RetryAfter::from_micros(wait_us));
    let report = Report { lines: &[], admitted: false, retry_after: wait, now_unix_us: NOW_US };
    write(&mut headers, &PolicyField::new(Dialect::Draft11, []), &report);
    fields(&headers)
}

#[test]
fn the_later_of_two_stays_alone() {
    assert_eq!(merged([], 5_000_000), owned([("retry-after", "5")]));
    assert_eq!(merged([("retry-after", "4")], 5_000_000), owned([("retry-after", "5")]));
    assert_eq!(merged([("retry-after", "6")], 5_000_000), owned([("retry-after", "6")]));
    let several = [("retry-after", "1"), ("retry-after", "9"), ("retry-after", "2")];
    assert_eq!(merged(several, 5_000_000), owned([("retry-after", "9")]));
    let huge = "99999999999999999999999999";
    assert_eq!(merged([("retry-after", huge)], 5_000_000), owned([("retry-after", huge)]));
}

#[test]
fn a_date_stays_only_if_it_is_provably_later() {
    // NOW_US is 09:32:54.
    let date = "Fri, 20 Nov 2026 09:33:00 GMT";
    assert_eq!(merged([("retry-after", date)], 6_000_000), owned([("retry-after", date)]));
    assert_eq!(merged([("retry-after", date)], 6_000_001), owned([("retry-after", "7")]));
    // Half a second later the date is 5.5 seconds away, which is not provably six.
    let half_past = |wait_us| {
        let mut headers = with([("retry-after", date)]);
        let retry_after = Some(RetryAfter::from_micros(wait_us));
        let report = Report { lines: &[], admitted: false, retry_after, now_unix_us: NOW_US + 500_000 };
        write(&mut headers, &PolicyField::new(Dialect::Draft11, []), &report);
        fields(&headers)
    };
    assert_eq!(half_past(6_000_000), owned([("retry-after", "6")]));
    assert_eq!(half_past(5_000_000), owned([("retry-after", date)]));
    let obsolete = "Friday, 20-Nov-26 23:59:59 GMT";
    assert_eq!(merged([("retry-after", obsolete)], 1), owned([("retry-after", "1")]));
}

#[test]
fn what_is_no_wait_goes() {
    for theirs in ["", "-5", "1.5", "soon", "5s", "+9"] {
        assert_eq!(merged([("retry-after", theirs)], 1), owned([("retry-after", "1")]), "{theirs}");
    }
}

#[test]
fn an_admitted_request_gets_none_and_keeps_what_it_had() {
    let mut headers = with([("retry-after", "7")]);
    let report = Report { lines: &[], admitted: true, retry_after: Some(RetryAfter::MAX), now_unix_us: NOW_US };
    write(&mut headers, &PolicyField::new(Dialect::Draft11, []), &report);
    assert_eq!(fields(&headers), owned([("retry-after", "7")]));
}

proptest! {
    #[test]
    fn attack_44_retry_after_is_never_early_zero_or_fractional(
        waits in prop::collection::vec(any_number(), 1..5),
        dialect in prop::sample::select(DIALECTS.to_vec()),
    ) {
        let lines: Vec<Line<'_>> = waits.iter().map(|us| shut(terms("a", 10, 1), *us)).collect();
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
    fn the_wait_is_the_maximum_of_ours_and_theirs(ours in any_number(), theirs in prop::collection::vec(any_number(), 0..3)) {
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
