use super::*;
use crate::headers::structured;

fn lines() -> [PolicyStatus<'static>; 1] {
    [open(terms("ours", 10, 1), 5, 1_000_000)]
}

fn told(existing: HeaderMap) -> String {
    let mut headers = existing;
    answer(&mut headers, Dialect::Draft11, &lines());
    String::from_utf8(combined(&headers, "ratelimit")).unwrap()
}

#[test]
fn existing_members_stay_and_ours_follow() {
    let existing = with([
        ("ratelimit", r#""up, \"stream\"";r=3;t=9;pk=:AAE=:"#),
        ("ratelimit", r#""b";r=1"#),
    ]);
    assert_eq!(
        told(existing),
        r#""up, \"stream\"";r=3;t=9;pk=:AAE=:, "b";r=1, "ours";r=5;t=1"#
    );
}

/// No member is loosened or lost: a client that keeps to all of them passes both limiters.
#[test]
fn existing_members_of_our_name_stay_before_ours() {
    for theirs in [
        r#""ours";r=4;t=1"#,
        r#""ours";r=6;t=9;x=1"#,
        r#""ours";a=1"#,
        r#""ours";r=9;pk=:AA==:, "ours";r=4;pk=:AQ==:"#,
    ] {
        let joined = format!(r#"{theirs}, "ours";r=5;t=1"#);
        assert_eq!(told(with([("ratelimit", theirs)])), joined);
    }
    let mut headers = with([("ratelimit-policy", r#""ours";q=100;w=60"#)]);
    answer(&mut headers, Dialect::Draft11, &lines());
    assert_eq!(
        combined(&headers, "ratelimit-policy"),
        br#""ours";q=100;w=60, "ours";q=10;w=1"#
    );
}

#[test]
fn existing_line_that_does_not_parse_is_dropped() {
    for broken in [
        "",
        "a",
        "10;w=1",
        r#""a";r="#,
        r#""a","#,
        "limit=10, remaining=7",
    ] {
        let lines = [("ratelimit", r#""b";r=1"#), ("ratelimit", broken)];
        assert_eq!(told(with(lines)), r#""b";r=1, "ours";r=5;t=1"#, "{broken}");
    }
}

#[test]
fn values_are_read_by_the_grammar() {
    let readable = |value: &str| {
        let line = format!("\"a\";x={value}");
        let ours = structured::list_counts(line.as_bytes(), []).is_some();
        assert_eq!(ours, Parser::new(&line).parse::<List>().is_ok(), "{value}");
        ours
    };
    let good = r##"999999999999999 -0 123456789012.123 tok:/en * ?1 @-1 :: :AA: :AAA=: :AB==: %"%c3%a4" "\\\"""##;
    let bad = r##"1000000000000000 - 1. 1.1234 1234567890123.1 ?2 @1.5 :A: :AA===: :A-: :AA & %"%C3%A4" %"%6g" %"%ff" %"a "\a" ""a ä"##;
    for (values, expected) in [(good, true), (bad, false)] {
        values
            .split(' ')
            .for_each(|value| assert_eq!(readable(value), expected, "{value}"));
    }
}

/// Every kind of value that a parameter can have, as sfv writes it.
fn any_bare_item() -> impl Strategy<Value = BareItem> {
    prop_oneof![
        (-999_999_999_999_999_i64..=999_999_999_999_999)
            .prop_map(|n| BareItem::Integer(sfv::Integer::try_from(n).unwrap())),
        (-999_999_999_999_999_i64..=999_999_999_999_999).prop_map(|n| {
            BareItem::Decimal(sfv::Decimal::from_integer_scaled_1000(
                sfv::Integer::try_from(n).unwrap(),
            ))
        }),
        "[ -~]{0,12}".prop_map(|text| BareItem::String(sfv::String::from_string(text).unwrap())),
        "[a-zA-Z*][a-zA-Z0-9!#$%&'*+.^_`|~:/-]{0,12}"
            .prop_map(|text| BareItem::Token(sfv::Token::from_string(text).unwrap())),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(BareItem::ByteSequence),
        any::<bool>().prop_map(BareItem::Boolean),
        (-999_999_999_999_i64..=999_999_999_999).prop_map(|n| BareItem::Date(
            sfv::Date::from_unix_seconds(sfv::Integer::try_from(n).unwrap())
        )),
        ".{0,8}".prop_map(BareItem::DisplayString),
    ]
}

fn any_member() -> impl Strategy<Value = ListEntry> {
    let key = prop_oneof![
        Just("r".to_owned()),
        Just("q".to_owned()),
        "[a-z*][a-z0-9_.*-]{0,5}"
    ];
    (
        any_name(),
        prop::collection::vec((key, any_bare_item()), 0..4),
    )
        .prop_map(|(name, parameters)| {
            let mut item = Item::new(sfv::String::from_string(name).unwrap());
            for (key, value) in parameters {
                item.params
                    .insert(sfv::Key::from_string(key).unwrap(), value);
            }
            ListEntry::Item(item)
        })
}

proptest! {
    #[test]
    fn attack_53_a_readable_list_loses_nothing(
        existing in prop::collection::vec(prop::collection::vec(any_member(), 1..4), 1..3),
        described in prop::collection::hash_map(any_name(), any_numbers(), 1..4),
    ) {
        let lines: Vec<PolicyStatus<'_>> = described.iter().map(|(name, numbers)| line_of(name, *numbers)).collect();
        for field in ["ratelimit", "ratelimit-policy"] {
            let mut headers = HeaderMap::new();
            answer(&mut headers, Dialect::Draft11, &lines);
            let ours: List = parsed(&combined(&headers, field));
            headers.clear();
            for members in &existing {
                let line = FieldType::serialize(members).unwrap();
                headers.append(field, HeaderValue::from_str(&line).unwrap());
            }
            answer(&mut headers, Dialect::Draft11, &lines);

            prop_assert_eq!(headers.get_all(field).into_iter().count(), 1);
            let joined: List = parsed(&combined(&headers, field));
            let both: List = existing.iter().flatten().chain(&ours).cloned().collect();
            prop_assert_eq!(joined, both);
        }
    }

    #[test]
    fn attack_53_garbage_never_panics_and_never_stays(
        existing in prop::collection::vec(almost_a_list(), 1..3),
        described in prop::collection::hash_map(any_name(), any_numbers(), 1..4),
    ) {
        let lines: Vec<PolicyStatus<'_>> = described.iter().map(|(name, numbers)| line_of(name, *numbers)).collect();
        let mut headers = HeaderMap::new();
        for line in &existing {
            for field in ["ratelimit", "ratelimit-policy", "retry-after", "ratelimit-limit", "cache-control"] {
                headers.append(field, line.clone());
            }
        }
        for &dialect in Dialect::ALL {
            let mut headers = headers.clone();
            answer(&mut headers, dialect, &lines);
            let _ = crate::headers::is_public(&headers);
            if dialect == Dialect::Draft11 {
                for field in ["ratelimit", "ratelimit-policy"] {
                    let list: List = parsed(&combined(&headers, field));
                    prop_assert!(!list.is_empty());
                }
            }
        }
    }
}

proptest! {
    /// A stricter scanner would drop headers that clients can read; a laxer one would keep headers
    /// that they cannot.
    #[test]
    fn attack_53_the_scanner_accepts_what_sfv_accepts(
        line in prop_oneof![
            almost_a_list(),
            prop::collection::vec(any_member(), 1..4).prop_map(|list| {
                HeaderValue::from_str(&FieldType::serialize(&list).unwrap()).unwrap()
            }),
        ],
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut line = line.as_bytes().to_vec();
        if let Some((at, byte)) = damage && !line.is_empty() {
            let at = at.index(line.len());
            line[at] = byte;
        }
        let reference: Result<List, _> = Parser::new(&line).parse();
        let strings = |list: &List| {
            let is_string = |entry: &ListEntry| match entry {
                ListEntry::Item(item) => item.bare_item.as_string().is_some(),
                ListEntry::InnerList(_) => false,
            };
            !list.is_empty() && list.iter().all(is_string)
        };
        prop_assert_eq!(structured::list_counts(&line, []).is_some(), reference.is_ok_and(|list| strings(&list)));

        let item: Result<Item, _> = Parser::new(&line).parse();
        let count = item.ok().and_then(|item| u64::try_from(i64::from(item.bare_item.as_integer()?)).ok());
        prop_assert_eq!(structured::single_count(&line), count);
    }
}

/// Bytes that a header may hold, mostly those with a meaning in a list.
fn almost_a_list() -> impl Strategy<Value = HeaderValue> {
    let byte = prop_oneof![
        8 => prop::sample::select(br#" "\,;=:?@%()-.0123456789aAzr*/"#.to_vec()),
        1 => prop_oneof![Just(b'\t'), 0x20..=0x7E_u8, 0x80..=0xFF_u8],
    ];
    let piece = prop_oneof![
        2 => prop::collection::vec(byte, 1..4),
        3 => prop::sample::select(vec![
            r#""a""#, r#""b\"";r=1"#, ", ", ";t=", "1", ";pk=:AA=:", ";x=%\"%ff\"", ";d=@1", ";b=?1", "0000000000000001.5",
        ]).prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..10)
        .prop_map(|pieces| HeaderValue::from_bytes(&pieces.concat()).unwrap())
}
