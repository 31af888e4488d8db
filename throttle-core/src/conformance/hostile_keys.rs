//! The keys that careless code would let meet. Traces draw from them, and law 11 takes them all.

use crate::key::Key;

/// Keys that careless joining, escaping, folding, cutting or hashing would let meet, mostly those
/// next to each other.
pub(super) fn hostile_keys() -> Vec<Key> {
    let pair = |one: &str, other: &str| Key::builder().text(one).text(other).finish();
    let long = "k".repeat(64 * 1024);
    let mut keys = vec![
        Key::CONSTANT,
        Key::missing(),
        Key::builder().missing().missing().finish(),
        pair("a:b", "c"),
        pair("a", "b:c"),
        Key::from("a:b:c"),
        pair("a", ":b:c"),
        pair("abc", ""),
        pair("", "abc"),
        Key::from(1),
        Key::from(0),
        Key::from(u64::MAX),
        Key::builder().bytes(b"1").finish(),
    ];
    // é composed and decomposed, ß and ss, a Cyrillic а, width variants, an ignorable character.
    let texts = [
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
        "{}",
        "{a}",
        "a{b}c",
        "{",
        "}",
        "*",
        "?",
        "[a]",
        "a*",
        "%00",
        "%",
        "\\",
        "\\0",
        "'",
        "\"",
        "$1",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "а",
        "ａ",
        "a\u{200b}",
        "\u{feff}a",
        "🦀",
        "1",
        "127.0.0.1",
    ];
    keys.extend(texts.map(Key::from));
    // The last two are the same once bytes that are no text are replaced.
    let bytes = [&[0xff, 0xfe][..], &[0xff], &[0xfe]];
    keys.extend(bytes.map(|bytes| Key::builder().bytes(bytes).finish()));
    let addresses = ["127.0.0.1", "::1", "::"].map(|ip| ip.parse::<std::net::IpAddr>());
    keys.extend(addresses.map(|ip| Key::from(ip.expect("an address"))));
    let other_end = format!("{}l", &long[1..]);
    keys.extend([&long, &format!("{long}k"), &other_end].map(|text| Key::from(text.as_str())));
    keys.extend([255, 256, 257].map(|length| Key::from("x".repeat(length).as_str())));
    keys
}
