//! The names that keys have on the server: `prefix{tag}policy:key`, or `prefix{key}policy:`, or
//! `prefix{first part}policy:key`.
//!
//! By construction no two keys of a backend have the same name, and nothing that a client sends can
//! end a name early, choose its slot or match another's pattern: the policy's name is escaped, and
//! the key is a digest or escaped too.

use std::fmt::Write;
use std::net::IpAddr;

use sha1_smol::Sha1;
use throttle_core::backend::KeyDigest;
use throttle_core::{ConfigError, Key, KeyPart};

use crate::links::hash_slot;

/// Which slot of a cluster a key is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// All keys of the backend in the slot of one tag: every set is decided in one step.
    SingleSlot(String),
    /// Each key in a slot of its own.
    PerKeySlot,
    /// Each key in the slot of its first part.
    ByFirstPart,
}

pub(crate) struct Keyspace {
    prefix: String,
    placement: Placement,
    digest: KeyDigest,
    /// Write keys unhashed, if they are short enough.
    readable: bool,
}

/// The longest readable key; longer ones are digested.
const LONGEST: usize = 160;

impl Keyspace {
    pub(crate) fn new(
        prefix: &str,
        placement: Placement,
        secret: &[u8],
        readable: bool,
    ) -> Result<Self, ConfigError> {
        let fits = |text: &str| {
            text.len() <= 64
                && text
                    .bytes()
                    .all(|b| (0x21..=0x7e).contains(&b) && !b"{}".contains(&b))
        };
        let rule = "it must be 1 to 64 printable ASCII characters other than space and braces";
        if prefix.is_empty() || !fits(prefix) {
            return Err(ConfigError::new(
                "key prefix",
                format_args!("{prefix:?}"),
                rule,
            ));
        }
        if let Placement::SingleSlot(tag) = &placement
            && (tag.is_empty() || !fits(tag))
        {
            return Err(ConfigError::new("hash tag", format_args!("{tag:?}"), rule));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            placement,
            digest: digest_under(secret),
            readable,
        })
    }

    /// The slot of all keys of a cluster, if they are in one.
    pub(crate) fn one_slot(&self) -> Option<u16> {
        match &self.placement {
            Placement::SingleSlot(tag) => Some(hash_slot::of(tag.as_bytes())),
            Placement::PerKeySlot | Placement::ByFirstPart => None,
        }
    }

    /// The parts that all names of a policy's keys share.
    pub(crate) fn policy(&self, name: &str) -> PolicyNames {
        let mut escaped = String::with_capacity(name.len() + 1);
        escape(&mut escaped, name.as_bytes());
        escaped.push(':');
        match &self.placement {
            Placement::SingleSlot(tag) => PolicyNames {
                head: format!("{}{{{tag}}}{escaped}", self.prefix),
                tail: String::new(),
            },
            Placement::PerKeySlot | Placement::ByFirstPart => PolicyNames {
                head: format!("{}{{", self.prefix),
                tail: format!("}}{escaped}"),
            },
        }
    }

    pub(crate) fn name(&self, policy: &PolicyNames, key: &Key) -> Vec<u8> {
        let (head, tail) = (policy.head.as_bytes(), policy.tail.as_bytes());
        if self.placement == Placement::ByFirstPart {
            let first = key.first_part();
            // A key of one part is named as if it had a slot of its own.
            if first != *key {
                return [head, &self.text(&first), tail, &self.text(key)].concat();
            }
        }
        match self.readable {
            true => [head, self.readable(key).as_bytes(), tail].concat(),
            false => [head, &self.digest(key), tail].concat(),
        }
    }

    fn text(&self, key: &Key) -> Vec<u8> {
        match self.readable {
            true => self.readable(key).into_bytes(),
            false => self.digest(key).to_vec(),
        }
    }

    /// The pattern of `SCAN … MATCH` that finds every key of every policy whose name starts with
    /// `prefix`, or, if `end` is a colon, of the policy with this name. Keys under another tag
    /// belong to another backend.
    pub(crate) fn pattern(&self, prefix: &str, end: &str) -> String {
        let mut pattern = String::new();
        push_literally(&mut pattern, &self.prefix);
        pattern.push('{');
        match &self.placement {
            Placement::SingleSlot(tag) => push_literally(&mut pattern, tag),
            // Keys never contain a brace, so the brace in the pattern ends the tag.
            Placement::PerKeySlot | Placement::ByFirstPart => pattern.push('*'),
        }
        pattern.push('}');
        // Escaped text contains no character that is special in a pattern.
        escape(&mut pattern, prefix.as_bytes());
        pattern.push_str(end);
        pattern.push('*');
        pattern
    }

    fn readable(&self, key: &Key) -> String {
        let mut text = String::new();
        push_parts(&mut text, key);
        if text.len() > LONGEST {
            text.clear();
            text.push('#');
            text.extend(self.digest(key).map(char::from));
        } else if text.is_empty() {
            // The key has no parts. Redis ignores an empty tag, so a star stands in.
            text.push('*');
        }
        text
    }

    fn digest(&self, key: &Key) -> [u8; DIGEST] {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let bits = u128::from_le_bytes(self.digest.of(key));
        std::array::from_fn(|index| ALPHABET[(bits >> (6 * index) & 63) as usize])
    }
}

/// The fixed parts of a policy's names.
#[derive(Clone, Debug)]
pub(crate) struct PolicyNames {
    head: String,
    tail: String,
}

/// The characters of a digest.
const DIGEST: usize = 22;

/// The digest under a key derived from a secret of any length. SHA-1 is one-way, which
/// is all that is needed of it here.
fn digest_under(secret: &[u8]) -> KeyDigest {
    let mut derived = Sha1::from("throttle-redis: names of keys\0");
    derived.update(secret);
    KeyDigest::new(
        derived
            .digest()
            .bytes()
            .first_chunk()
            .expect("20 bytes have 16 to begin with"),
    )
}

/// The parts of a key, as readable as possible: kind, content, comma.
fn push_parts(name: &mut String, key: &Key) {
    for (index, part) in key.expose_parts().enumerate() {
        if index > 0 {
            name.push(',');
        }
        // Writing to a string does not fail.
        let _ = match part {
            KeyPart::Missing => write!(name, "-"),
            KeyPart::Number(number) => write!(name, "n{number}"),
            KeyPart::Text(text) => {
                name.push('t');
                escape(name, text.as_bytes());
                Ok(())
            }
            KeyPart::Bytes(bytes) => {
                name.push('b');
                escape(name, bytes);
                Ok(())
            }
            KeyPart::Network(IpAddr::V4(v4), bits) => write!(name, "4{v4}/{bits}"),
            KeyPart::Network(IpAddr::V6(v6), bits) => write!(name, "6{v6}/{bits}"),
            _ => write!(name, "?"),
        };
        if name.len() > 1024 {
            // Already too long; the digest is used instead.
            return;
        }
    }
}

/// Escapes the characters that are special in a pattern.
fn push_literally(pattern: &mut String, text: &str) {
    for character in text.chars() {
        if r"*?[]\^-".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
}

/// Percent-encodes all but letters, digits and `-._~@/`.
fn escape(name: &mut String, bytes: &[u8]) {
    for &byte in bytes.iter().take(4 * LONGEST) {
        if byte.is_ascii_alphanumeric() || b"-._~@/".contains(&byte) {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(placement: Placement, readable: bool) -> Keyspace {
        Keyspace::new("throttle", placement, b"secret", readable).unwrap()
    }

    fn together() -> Placement {
        Placement::SingleSlot("all".to_owned())
    }

    fn placements() -> [Placement; 3] {
        [together(), Placement::PerKeySlot, Placement::ByFirstPart]
    }

    fn name(space: &Keyspace, policy: &str, key: &Key) -> String {
        String::from_utf8(space.name(&space.policy(policy), key)).unwrap()
    }

    #[test]
    fn law_11_names_are_as_documented() {
        let ip = Key::from("192.0.2.1".parse::<IpAddr>().unwrap());
        assert_eq!(
            name(&space(together(), true), "per-ip", &ip),
            "throttle{all}per-ip:4192.0.2.1/32"
        );
        assert_eq!(
            name(&space(Placement::PerKeySlot, true), "per-ip", &ip),
            "throttle{4192.0.2.1/32}per-ip:"
        );
        let digested = name(&space(together(), false), "a:b", &ip);
        assert_eq!(digested.len(), "throttle{all}a%3Ab:".len() + 22);
        assert!(digested.starts_with("throttle{all}a%3Ab:"));
        // Another digest would begin every budget anew when processes are updated.
        let ada = name(&space(together(), false), "p", &Key::from("ada"));
        assert_eq!(ada, "throttle{all}p:kbidqkDiSjF70DPxA4CPwA");
        let parts = Key::builder()
            .number(7)
            .bytes(b"a:b")
            .missing()
            .ip("2001:db8::1".parse().unwrap())
            .finish();
        assert_eq!(
            name(&space(together(), true), "p", &parts),
            "throttle{all}p:n7,ba%3Ab,-,62001:db8::1/128"
        );
        let (spread, by_first) = (Placement::PerKeySlot, Placement::ByFirstPart);
        assert_eq!(
            name(&space(by_first.clone(), true), "p", &parts),
            "throttle{n7}p:n7,ba%3Ab,-,62001:db8::1/128"
        );
        let of =
            |placement: &Placement, key: &Key| name(&space(placement.clone(), false), "p", key);
        let (first, whole) = (of(&together(), &Key::from(7)), of(&together(), &parts));
        assert_eq!(
            of(&by_first, &parts),
            format!("throttle{{{}}}p:{}", &first[15..], &whole[15..])
        );
        for alone in [ip.clone(), Key::CONSTANT, Key::missing()] {
            assert_eq!(of(&by_first, &alone), of(&spread, &alone));
        }
        assert_ne!(
            name(
                &Keyspace::new("throttle", together(), b"other", false).unwrap(),
                "a:b",
                &ip
            ),
            digested
        );
    }

    #[test]
    fn law_11_attack_26_nothing_in_a_key_ends_its_name_or_chooses_its_slot() {
        let hostile = [
            "}",
            "{",
            "{}",
            "a}b:c",
            "\r\nDEL x",
            "\0",
            "*",
            "?[a]",
            "%7D",
            "a,tb",
            &"x".repeat(65_536),
        ];
        for placement in placements() {
            for readable in [true, false] {
                let space = space(placement.clone(), readable);
                let mut seen = std::collections::HashSet::new();
                for text in hostile {
                    for policy in ["p", "p:", "{p}", "p*"] {
                        for key in [
                            Key::from(text),
                            Key::builder().bytes(text.as_bytes()).finish(),
                            Key::builder().text(text).text("x").finish(),
                            Key::builder().text("x").text(text).finish(),
                        ] {
                            let name = name(&space, policy, &key);
                            assert!(name.len() < 600, "{} bytes", name.len());
                            assert_eq!(
                                name.matches('{').count() + name.matches('}').count(),
                                2,
                                "{name}"
                            );
                            assert!(name.bytes().all(|b| b.is_ascii_graphic()), "{name}");
                            assert!(!name.contains("{}"), "an empty tag is none: {name}");
                            assert!(seen.insert(name), "two keys of one name");
                        }
                    }
                }
                assert!(!name(&space, "p", &Key::CONSTANT).contains("{}"));
                assert_ne!(
                    name(&space, "p", &Key::CONSTANT),
                    name(&space, "p", &Key::from("*"))
                );
            }
        }
    }

    /// Parts of every kind, so that the key of a part alone, of two and of three occur.
    fn combinations() -> Vec<Key> {
        let parts = [
            Key::missing(),
            Key::from("acme"),
            Key::from("umbra"),
            Key::from("1"),
            Key::from(1),
            Key::from(vec![1]),
            Key::from(IpAddr::from([192, 0, 2, 1])),
            Key::from("x".repeat(300)),
        ];
        let mut keys = vec![Key::CONSTANT];
        for _ in 0..3 {
            let longer = keys.iter().flat_map(|key| {
                let longer = |part| Key::builder().key(key).key(part).finish();
                parts.iter().map(longer).collect::<Vec<_>>()
            });
            keys = longer.chain(keys.clone()).collect();
            keys.sort_by(|one, other| one.expose_bytes().cmp(other.expose_bytes()));
            keys.dedup();
        }
        keys
    }

    #[test]
    fn law_11_keys_that_differ_in_any_part_never_share_a_name() {
        let keys = combinations();
        assert_eq!(keys.len(), 1 + 8 + 64 + 512);
        for placement in placements() {
            for readable in [true, false] {
                let space = space(placement.clone(), readable);
                let policies = ["p", "q", "p:", "p:q"];
                let names = policies.map(|policy| {
                    keys.iter()
                        .map(|key| name(&space, policy, key))
                        .collect::<Vec<_>>()
                });
                let different: std::collections::HashSet<_> = names.iter().flatten().collect();
                assert_eq!(
                    different.len(),
                    policies.len() * keys.len(),
                    "{placement:?}"
                );
            }
        }
    }

    #[test]
    fn law_11_keys_with_the_same_first_part_share_a_slot() {
        for readable in [true, false] {
            let space = space(Placement::ByFirstPart, readable);
            assert_eq!(space.one_slot(), None);
            let mut slots = std::collections::HashMap::new();
            for key in combinations() {
                for policy in ["p", "q"] {
                    let slot = hash_slot::of(name(&space, policy, &key).as_bytes());
                    let of_first = slots.entry(key.first_part().expose_bytes().to_vec());
                    assert_eq!(*of_first.or_insert(slot), slot, "{key:?}");
                }
            }
            let different: std::collections::HashSet<_> = slots.values().collect();
            assert_eq!(
                (slots.len(), different.len()),
                (9, 9),
                "other first parts, other slots"
            );
        }
    }

    #[test]
    fn law_11_names_hold_no_part_of_a_key_unless_keys_are_readable() {
        let parts = ["hunter2-tenant", "hunter2-user"];
        let key = parts
            .iter()
            .fold(Key::builder(), |key, part| key.text(part))
            .finish();
        for placement in placements() {
            for readable in [true, false] {
                let name = name(&space(placement.clone(), readable), "p", &key);
                assert!(
                    parts.iter().all(|part| name.contains(part) == readable),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn law_11_long_keys_that_begin_alike_have_names_of_their_own() {
        let space = space(together(), true);
        let long = |last: &str| Key::builder().text(&"a".repeat(5_000)).text(last).finish();
        assert_ne!(name(&space, "p", &long("x")), name(&space, "p", &long("y")));
        let limit = "a".repeat(LONGEST - 1);
        assert_eq!(
            name(&space, "p", &Key::from(limit.as_str())),
            format!("throttle{{all}}p:t{limit}")
        );
        let digested = name(&space, "p", &Key::from(format!("{limit}a")));
        assert_eq!(
            (&digested[..16], digested.len()),
            ("throttle{all}p:#", 16 + 22),
            "it cannot be a readable key"
        );
        let parts = Key::builder()
            .text(&"a".repeat(120))
            .text("b")
            .number(3)
            .finish();
        assert_eq!(
            name(&space, "p", &parts),
            format!("throttle{{all}}p:t{},tb,n3", "a".repeat(120))
        );
    }

    #[test]
    fn law_11_escapes_have_two_digits() {
        let space = space(together(), true);
        let of = |text: &str| name(&space, "p", &Key::from(text));
        assert_eq!(
            (of("\u{1}2").as_str(), of("\u{12}").as_str()),
            ("throttle{all}p:t%012", "throttle{all}p:t%12")
        );
    }

    #[test]
    fn prefixes_that_would_choose_a_slot_are_refused() {
        for fits in ["!", "~", &"x".repeat(64)] {
            assert!(
                Keyspace::new(fits, Placement::SingleSlot(fits.to_owned()), b"", false).is_ok(),
                "{fits:?}"
            );
        }
        for wrong in ["", "a{b", "}", "with space", "\u{7f}", "ü", &"x".repeat(65)] {
            let error = Keyspace::new(wrong, together(), b"", false).err().unwrap();
            assert_eq!(error.field(), "key prefix");
            let error = Keyspace::new("p", Placement::SingleSlot(wrong.to_owned()), b"", false)
                .err()
                .unwrap();
            assert_eq!(error.field(), "hash tag");
        }
    }

    #[test]
    fn patterns_take_prefixes_literally() {
        let space = Keyspace::new("a*[b]", together(), b"", false).unwrap();
        assert_eq!(space.pattern("p*:", ""), r"a\*\[b\]{all}p%2A%3A*");
        let space =
            Keyspace::new("a", Placement::SingleSlot("*-?".to_owned()), b"", false).unwrap();
        assert_eq!(space.pattern("p", ""), r"a{\*\-\?}p*");
        let space = Keyspace::new("a^b", together(), b"", false).unwrap();
        assert_eq!(space.pattern("", ""), r"a\^b{all}*");
        assert_eq!(
            Keyspace::new(r"a\b", together(), b"", false)
                .unwrap()
                .pattern("p", ""),
            r"a\\b{all}p*"
        );
        for placement in [Placement::PerKeySlot, Placement::ByFirstPart] {
            let space = Keyspace::new("a", placement, b"", false).unwrap();
            assert_eq!(space.pattern("p", ""), "a{*}p*");
        }
    }

    /// Other names would begin every budget anew when processes are updated.
    #[test]
    fn law_11_letters_digits_and_six_marks_are_written_as_they_are() {
        let space = space(together(), true);
        let key = Key::from("aZ09-._~@/ +%:é");
        assert_eq!(
            name(&space, "aZ09-._~@/ +", &key),
            "throttle{all}aZ09-._~@/%20%2B:taZ09-._~@/%20%2B%25%3A%C3%A9"
        );
    }

    #[test]
    fn errors_of_prefixes_and_tags_show_what_was_given_and_the_rule() {
        let rule = "it must be 1 to 64 printable ASCII characters other than space and braces";
        let error = Keyspace::new("a b", Placement::SingleSlot("c}".to_owned()), b"", false)
            .err()
            .unwrap();
        assert_eq!(error.to_string(), format!("key prefix is \"a b\": {rule}"));
        let error = Keyspace::new("a", Placement::SingleSlot("c}".to_owned()), b"", false)
            .err()
            .unwrap();
        assert_eq!(error.to_string(), format!("hash tag is \"c}}\": {rule}"));
    }
}
