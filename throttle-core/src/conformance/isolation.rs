//! Law 11: keys are injective.

use super::fixture::{Fixture, policy, start};
use super::{Harness, Sample};
use crate::algorithm::Algorithm;
use crate::key::Key;
use crate::set::PolicyTree;

const PREFIXED: [&str; 9] = ["a", "a:", "a*", "a*b", "axb", "b", "b:a", "[ab]", "a{b}\\?"];

/// Keys that careless joining, escaping, folding, cutting or hashing would let meet.
fn hostile_keys() -> Vec<Key> {
    let text = |text: &str| Key::from(text);
    let pair = |a: &str, b: &str| Key::builder().text(a).text(b).finish();
    let long = "k".repeat(64 * 1024);
    let mut keys = vec![
        Key::CONSTANT,
        Key::missing(),
        Key::builder().missing().missing().finish(),
    ];
    keys.extend([
        pair("a:b", "c"),
        pair("a", "b:c"),
        pair("a", ":b:c"),
        text("a:b:c"),
        pair("abc", ""),
        pair("", "abc"),
    ]);
    keys.extend(
        [
            "",
            " ",
            "  ",
            "\0",
            "a\0",
            "\0a",
            "a\0b",
            "a",
            "A",
            "\r\n",
            "a\r\nDEL a",
            "\n",
            "\r",
        ]
        .map(text),
    );
    keys.extend(
        [
            "{}", "{a}", "a{b}c", "{", "}", "*", "?", "[a]", "a*", "%00", "%", "\\", "\\0", "'",
            "\"", "$1",
        ]
        .map(text),
    );
    // é composed and decomposed, ß and ss, a Cyrillic а, width variants, an ignorable character.
    keys.extend(
        [
            "é",
            "e\u{301}",
            "ß",
            "ss",
            "а",
            "ａ",
            "a\u{200b}",
            "\u{feff}a",
            "🦀",
        ]
        .map(text),
    );
    keys.extend([
        Key::from(1),
        text("1"),
        Key::builder().bytes(b"1").finish(),
        Key::from(0),
        Key::from(u64::MAX),
    ]);
    // [0xff] and [0xfe]: two keys that are the same once bytes that are no text are replaced.
    keys.extend(
        [&[0xff, 0xfe][..], &[0xff], &[0xfe]].map(|bytes| Key::builder().bytes(bytes).finish()),
    );
    keys.extend(
        ["127.0.0.1", "::1", "::"]
            .map(|ip| Key::from(ip.parse::<std::net::IpAddr>().expect("an address"))),
    );
    keys.extend([
        text("127.0.0.1"),
        text(&long),
        text(&format!("{long}k")),
        text(&format!("{}l", &long[1..])),
    ]);
    keys.extend([
        text(&"x".repeat(255)),
        text(&"x".repeat(256)),
        text(&"x".repeat(257)),
    ]);
    keys
}

/// Keys that a careless encoding would confuse each have a whole budget of their own, before and
/// after all others are exhausted.
pub fn law_11_keys_are_injective<H: Harness>() {
    let harness = start::<H>();
    let sample = Sample::gcra();
    let fixture = Fixture::<H>::of(&harness, sample.algorithm());
    let keys = hostile_keys();
    for (place, key) in keys.iter().enumerate() {
        let decision = fixture.take(key, sample.capacity());
        assert!(
            decision.is_admitted(),
            "key {place}, {key:?}, shares a budget: {decision:?}"
        );
    }
    for (place, key) in keys.iter().enumerate() {
        assert_eq!(
            fixture.remaining(key),
            0,
            "key {place}, {key:?}, was exhausted"
        );
    }
}

/// One key in many policies has a budget in each, whatever their names, and sets that share a
/// policy share its budgets.
pub fn law_11_policies_are_isolated<H: Harness>() {
    let harness = start::<H>();
    let algorithm = *Sample::fixed_window().algorithm();
    let names = [
        "a", "a:b", "A", "a b", " a", "ab", "{a}", "a}", "a*", "\"a\"", "b",
    ];
    let fixtures = names.map(|name| Fixture::<H>::new(&harness, policy(name, &algorithm)));
    let keys = [
        Key::from("b"),
        Key::from("a"),
        Key::from("b:c"),
        Key::from("c"),
        Key::CONSTANT,
    ];
    for (name, fixture) in names.iter().zip(&fixtures) {
        for key in &keys {
            assert_eq!(
                fixture.drain(key),
                algorithm.capacity(),
                "policy {name:?}, {key:?}"
            );
        }
    }
    let rule = PolicyTree::All(vec![
        policy("b", &algorithm).into(),
        policy("new", &algorithm).into(),
    ]);
    let shared = Fixture::<H>::new(&harness, rule);
    let denied = shared.take(&keys[0], 1);
    assert!(
        !denied.is_admitted(),
        "a set with a policy of the same name shares its budgets: {denied:?}"
    );
    assert_eq!(
        denied.binding(),
        Some(0),
        "the policy of the same name refuses: {denied:?}"
    );
}

fn fixtures<'h, H: Harness>(harness: &'h H, algorithm: &Algorithm) -> Vec<Fixture<'h, H>> {
    PREFIXED
        .iter()
        .map(|name| Fixture::new(harness, policy(name, algorithm)))
        .collect()
}

/// Resetting one key of one policy makes that key unused, and changes no other.
pub fn law_11_reset_one_key<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let (algorithm, capacity) = (sample.algorithm(), sample.capacity());
    let rule = PolicyTree::All(vec![
        policy("first", algorithm).into(),
        policy("second", algorithm).into(),
    ]);
    let fixture = Fixture::<H>::new(&harness, rule);
    let (reset, kept) = (Key::from("reset"), Key::from("kept"));
    fixture.reset(0, &Key::from("never used"));
    for key in [&reset, &kept] {
        assert!(fixture.take(key, capacity).is_admitted());
    }
    fixture.reset(1, &reset);
    assert_eq!(fixture.left(&reset), [0, capacity]);
    assert_eq!(fixture.left(&kept), [0, 0]);
    fixture.reset(0, &reset);
    let (again, new) = (
        fixture.take(&reset, capacity),
        fixture.take(&Key::from("new"), capacity),
    );
    assert_eq!(fixture.observed(&again), fixture.observed(&new));
    assert!(!fixture.take(&reset, 1).is_admitted());
}

/// Forgetting by prefix takes the prefix literally, as the beginning of a policy's name.
pub fn law_11_reset_all_by_prefix<H: Harness>() {
    let algorithm = *Sample::sliding_log().algorithm();
    for prefix in ["a", "a*", "a:", "[", "a{", "", "nobody"] {
        let harness = start::<H>();
        let fixtures = fixtures(&harness, &algorithm);
        let keys = [
            Key::from("a"),
            Key::from("a*"),
            Key::from(prefix),
            Key::CONSTANT,
        ];
        for fixture in &fixtures {
            for key in &keys {
                assert!(fixture.drain(key) <= algorithm.capacity());
            }
        }
        let backend = harness.backend();
        harness
            .block_on(crate::Backend::reset_all(&backend, prefix))
            .expect("the backend resets");
        for (name, fixture) in PREFIXED.iter().zip(&fixtures) {
            let expected = if name.starts_with(prefix) {
                algorithm.capacity()
            } else {
                0
            };
            for key in &keys {
                assert_eq!(
                    fixture.remaining(key),
                    expected,
                    "policy {name:?}, {key:?}, after reset_all({prefix:?})"
                );
            }
        }
    }
}
