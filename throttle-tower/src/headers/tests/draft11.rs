use super::*;

#[test]
fn admitted_response_lists_every_policy() {
    let mut headers = HeaderMap::new();
    let lines = [
        open(terms("per-ip", 10, 1), 7, 400_000),
        open(terms("per-user-day", 1000, 86_400), 640, 55_296_000_000),
    ];
    answer(&mut headers, Dialect::Draft11, &lines);
    assert_eq!(
        fields(&headers),
        owned([
            (
                "ratelimit",
                r#""per-ip";r=7;t=1, "per-user-day";r=640;t=55296"#
            ),
            (
                "ratelimit-policy",
                r#""per-ip";q=10;w=1, "per-user-day";q=1000;w=86400"#
            ),
        ])
    );
}

#[test]
fn unit_other_than_requests_is_named() {
    let uploads = PolicyTerms {
        unit: Some("content-bytes".into()),
        ..terms("uploads", 65_535, 10)
    };
    let field = (Dialect::Draft11.form().policies)(&[open(uploads, 1, 1)]);
    assert_eq!(
        field.unwrap(),
        r#""uploads";q=65535;qu="content-bytes";w=10"#
    );
}

#[test]
fn empty_list_is_written_by_omitting_the_header() {
    for &dialect in Dialect::ALL {
        let mut headers = HeaderMap::new();
        answer(&mut headers, dialect, &[]);
        assert!(headers.is_empty(), "{dialect:?}");
    }
}

#[test]
fn response_without_room_stays_without_headers() {
    let mut headers = HeaderMap::new();
    let mut count = 0;
    while headers
        .try_insert(
            HeaderName::try_from(format!("x-{count}")).unwrap(),
            HeaderValue::from_static(""),
        )
        .is_ok()
    {
        count += 1;
    }
    for &dialect in Dialect::ALL {
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
        let policies = (Dialect::Draft11, (Dialect::Draft11.form().policies)(&lines));
        let mut headers = HeaderMap::new();
        let decision = HeaderContent { policies: &lines, admitted, retry_after, now_unix_us: NOW_US };
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
                Some(wait) if !admitted => prop_assert!(t <= wait.seconds(), "a window ends after \
                    Retry-After"),
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
