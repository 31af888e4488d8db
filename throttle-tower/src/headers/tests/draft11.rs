use super::*;

#[test]
fn admitted_response_lists_every_policy() {
    let mut headers = HeaderMap::new();
    let lines =
        [open(terms("per-ip", 10, 1), 7, 400_000), open(terms("per-user-day", 1000, 86_400), 640, 55_296_000_000)];
    answer(&mut headers, Dialect::Draft11, &lines);
    assert_eq!(
        fields(&headers),
        owned([
            ("ratelimit", r#""per-ip";r=7;t=1, "per-user-day";r=640;t=55296"#),
            ("ratelimit-policy", r#""per-ip";q=10;w=1, "per-user-day";q=1000;w=86400"#),
        ])
    );
}

#[test]
fn remaining_that_lasts_for_no_time_is_listed_as_such() {
    let mut headers = HeaderMap::new();
    answer(&mut headers, Dialect::Draft11, &[open(terms("p", 5, 60), 5, 0), open(terms("q", 5, 60), 4, 1)]);
    assert_eq!(combined(&headers, "ratelimit"), br#""p";r=5;t=0, "q";r=4;t=1"#);
}

#[test]
fn refusal_lists_only_the_policies_that_refused() {
    let mut headers = HeaderMap::new();
    let lines = [shut(terms("per-ip", 10, 1), 420_000), open(terms("per-user-day", 1000, 86_400), 640, 55_296_000_000)];
    answer(&mut headers, Dialect::Draft11, &lines);
    assert_eq!(
        fields(&headers),
        owned([
            ("ratelimit", r#""per-ip";r=0;t=1"#),
            ("ratelimit-policy", r#""per-ip";q=10;w=1, "per-user-day";q=1000;w=86400"#),
            ("retry-after", "1"),
        ])
    );
}

#[test]
fn refusal_by_two_policies_states_the_longer_wait() {
    let mut headers = HeaderMap::new();
    let lines = [shut(terms("per-ip", 10, 1), 420_000), shut(terms("per-user-day", 1000, 86_400), 12_042_000_001)];
    answer(&mut headers, Dialect::Draft11, &lines);
    assert_eq!(combined(&headers, "ratelimit"), br#""per-ip";r=0;t=1, "per-user-day";r=0;t=12043"#);
    assert_eq!(combined(&headers, "retry-after"), b"12043");
}

#[test]
fn unit_other_than_requests_is_named() {
    let uploads = PolicyTerms { unit: Some("content-bytes".into()), ..terms("uploads", 65_535, 10) };
    let field = Dialect::Draft11.form().policies(&[open(uploads, 1, 1)]);
    assert_eq!(field.unwrap(), r#""uploads";q=65535;qu="content-bytes";w=10"#);
}

/// Each policy has terms of its own, however many there are.
#[test]
fn every_policy_of_many_is_listed_with_its_own_terms() {
    let names: Vec<String> = (1..=12).map(|number| format!("policy-{number}")).collect();
    let lines: Vec<PolicyStatus<'_>> = (1_u64..)
        .zip(&names)
        .map(|(number, name)| {
            let unit = [None, Some("bytes"), Some("tokens")][number as usize % 3];
            open(
                PolicyTerms { unit: unit.map(Into::into), ..terms(name, 100 + number, 10 + number) },
                number,
                number * 1_000_000,
            )
        })
        .collect();
    let mut headers = HeaderMap::new();
    answer(&mut headers, Dialect::Draft11, &lines);
    let listed = |name| parsed::<List>(&combined(&headers, name));
    let (policies, standing) = (listed("ratelimit-policy"), listed("ratelimit"));
    assert_eq!([names_of(&policies), names_of(&standing)], [&*names, &*names]);
    for (line, (policy, standing)) in lines.iter().zip(policies.iter().zip(&standing)) {
        let unit = item(policy).params.get("qu").and_then(BareItem::as_string).map(|unit| unit.as_str());
        assert_eq!(unit, line.terms.unit.as_deref());
        let numbers = [("q", policy), ("w", policy), ("r", standing), ("t", standing)];
        let expected = [line.terms.quota.q, line.terms.quota.w, line.remaining, line.reset_us / 1_000_000];
        assert_eq!(numbers.map(|(key, entry)| count_of(entry, key)), expected.map(Some));
    }
}

#[test]
fn empty_list_is_written_by_omitting_the_header() {
    for dialect in DIALECTS {
        let mut headers = HeaderMap::new();
        answer(&mut headers, dialect, &[]);
        assert!(headers.is_empty(), "{dialect:?}");
    }
}

#[test]
fn response_without_room_stays_without_headers() {
    let mut headers = HeaderMap::new();
    let mut count = 0;
    while headers.try_insert(HeaderName::try_from(format!("x-{count}")).unwrap(), HeaderValue::from_static("")).is_ok()
    {
        count += 1;
    }
    for dialect in DIALECTS {
        answer(&mut headers, dialect, &[shut(terms("a", 1, 1), 1)]);
        assert_eq!(headers.len(), count, "{dialect:?}");
    }
}

proptest! {
    #[test]
    fn attack_53_lists_parse_and_equal_the_model(
        // A set of limits has no two policies of one name.
        described in prop::collection::hash_map(any_name(), any_numbers(), 0..6),
        admitted: bool,
        wait_us in prop::option::of(any_number()),
    ) {
        let lines: Vec<PolicyStatus<'_>> = described.iter().map(|(name, numbers)| line_of(name, *numbers)).collect();
        let retry_after = wait_us.map(RetryAfter::from_micros);
        let policies = (Dialect::Draft11, Dialect::Draft11.form().policies(&lines));
        let mut headers = HeaderMap::new();
        let decision = DescribedDecision { policies: &lines, admitted, retry_after, now_unix_us: NOW_US };
        write(&mut headers, &policies, &decision);

        let announced: List = parsed(&combined(&headers, "ratelimit-policy"));
        let told: List = parsed(&combined(&headers, "ratelimit"));
        for list in [&announced, &told] {
            let mut names = names_of(list);
            names.sort();
            let all = names.len();
            names.dedup();
            prop_assert_eq!(names.len(), all, "a name occurs twice");
        }
        for line in &lines {
            prop_assert!(names_of(&announced).contains(&own_name(line)));
            let listed = admitted || lines.iter().any(|other| other.violated && own_name(other) == own_name(line));
            prop_assert_eq!(names_of(&told).contains(&own_name(line)), listed);
        }
        for entry in &announced {
            let (q, w) = (count_of(entry, "q").unwrap(), count_of(entry, "w").unwrap());
            prop_assert!(w >= 1);
            let line = lines.iter().find(|line| own_name(line) == name_of(entry)).unwrap();
            prop_assert_eq!((q, w), (line.terms.quota.q, line.terms.quota.w));
        }
        for entry in &told {
            let (r, t) = (count_of(entry, "r").unwrap(), count_of(entry, "t").unwrap());
            let listed = lines.iter().filter(|line| admitted || line.violated);
            let candidates = listed.filter(|line| own_name(line) == name_of(entry));
            let told = |line: &PolicyStatus<'_>| line.remaining.min(line.terms.quota.q);
            let least = candidates.clone().map(told).min().unwrap();
            prop_assert_eq!(r, least);
            let longest = candidates.filter(|line| told(line) == r)
                .map(|line| line.effective_us).max().unwrap();
            match retry_after {
                Some(wait) if !admitted => prop_assert!(t <= wait.seconds(), "a window ends after Retry-After"),
                _ => prop_assert!(u128::from(t) * 1_000_000 >= longest.into() && t <= longest / 1_000_000 + 1),
            }
        }
    }

    #[test]
    fn roundings_never_promise_too_much(name in any_name(), numbers in any_numbers()) {
        let line = line_of(&name, numbers);
        prop_assert!(line.r() <= line.remaining && line.r() <= line.terms.quota.q);
        prop_assert!(u128::from(line.t()) * 1_000_000 >= line.effective_us.into());
    }
}
