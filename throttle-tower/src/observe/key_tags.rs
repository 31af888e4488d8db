//! Numbers that stand for keys within this process.

use std::hash::{BuildHasher, RandomState};

use throttle_core::Key;

/// Turns keys into 64-bit numbers under a secret, by a few multiplications: a request finds by them what it knows of a
/// key. They are never shown. A digest, which is shown, costs ten times as much to make and reveals nothing about the
/// secret.
pub(super) struct KeyTags {
    first: u64,
    last: u64,
    policy: u64,
}

impl KeyTags {
    pub(super) fn new() -> Self {
        // The standard library's way to random numbers is `RandomState`.
        let random = || RandomState::new().hash_one(0);
        Self { first: random(), last: random(), policy: random() | 1 }
    }

    /// The tag of a key of a policy, by the policy's place. It is never 0.
    pub(super) fn of(&self, policy: usize, key: &Key) -> u64 {
        self.of_short(policy, key).unwrap_or_else(|| self.of_long(policy, key.expose_bytes()) | 1)
    }

    /// The tag of a key of up to 16 bytes. No function is called for it.
    #[inline(always)]
    pub(super) fn of_short(&self, policy: usize, key: &Key) -> Option<u64> {
        let bytes = key.expose_bytes();
        Some(self.mixed(self.seed(policy, bytes.len()), ends(bytes)?) | 1)
    }

    /// Of keys that their length and both ends do not tell apart.
    #[inline(never)]
    fn of_long(&self, policy: usize, bytes: &[u8]) -> u64 {
        let seed = self.seed(policy, bytes.len());
        let mixed = bytes.chunks(2 * WORD).fold(seed, |seed, chunk| self.mixed(seed, ends(chunk).unwrap_or_default()));
        // So that the last chunk is mixed as well as the others.
        self.mixed(mixed, (0, 0))
    }

    #[inline(always)]
    fn seed(&self, policy: usize, len: usize) -> u64 {
        // Both are far below 2^32, so no two pairs have the same sum.
        ((policy as u64) << 32 | len as u64).wrapping_mul(self.policy)
    }

    /// Multiplies and folds, so that each bit of the result depends on all bits.
    #[inline(always)]
    fn mixed(&self, seed: u64, (first, last): (u64, u64)) -> u64 {
        let product = u128::from(first ^ self.first ^ seed) * u128::from(last ^ self.last);
        (product >> 64) as u64 ^ product as u64
    }
}

const WORD: usize = 8;

/// The first and the last word of up to 16 bytes, which have all of them; `None` for more bytes.
#[inline(always)]
fn ends(bytes: &[u8]) -> Option<(u64, u64)> {
    let half = |bytes: &[u8; WORD / 2]| u64::from(u32::from_le_bytes(*bytes));
    if bytes.len() > 2 * WORD {
        None
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        Some((u64::from_le_bytes(*first), u64::from_le_bytes(*last)))
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        Some((half(first), half(last)))
    } else {
        Some((bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)), 0))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn texts(length: usize) -> Vec<Key> {
        let text = |n: usize| format!("{n:a>length$}");
        let ends = |n: usize| format!("{n:03}{:a>length$}", n, length = length.saturating_sub(3));
        (0..1_000).flat_map(|n| [Key::from(text(n)), Key::from(ends(n))]).collect()
    }

    #[test]
    fn different_keys_and_policies_have_different_tags() {
        let tags = KeyTags::new();
        let mut keys: Vec<Key> = (0..=40).flat_map(|bytes| [vec![0; bytes], vec![7; bytes]]).map(Key::from).collect();
        keys.extend((0..10_000_u64).map(Key::from));
        keys.extend([Key::CONSTANT, Key::missing()]);
        keys.extend([4, 8, 15, 16, 17, 31, 32, 33, 300].into_iter().flat_map(texts));
        keys.sort_unstable_by(|one, other| one.expose_bytes().cmp(other.expose_bytes()));
        keys.dedup();
        let all: HashSet<u64> = (0..3)
            .flat_map(|policy| keys.iter().map(move |key| (policy, key)))
            .map(|(policy, key)| tags.of(policy, key))
            .collect();
        assert_eq!(all.len(), 3 * keys.len());
        assert!(!all.contains(&0));
    }

    /// A change of any byte of a long key changes the tag.
    #[test]
    fn all_bytes_of_a_key_count() {
        let tags = KeyTags::new();
        for length in 1..100 {
            let all: HashSet<u64> = (0..=length)
                .map(|changed| {
                    let mut bytes = vec![0; length];
                    if let Some(byte) = bytes.get_mut(changed) {
                        *byte = 1;
                    }
                    tags.of(0, &Key::from(bytes))
                })
                .collect();
            assert_eq!(all.len(), length + 1);
        }
    }

    #[test]
    fn tags_are_under_a_secret_and_spread_over_the_high_bits() {
        let (one, other) = (KeyTags::new(), KeyTags::new());
        assert_ne!(one.of(0, &Key::from("ada")), other.of(0, &Key::from("ada")));
        let mut counts = [0; 64];
        (0..64_000_u64).for_each(|n| counts[(one.of(0, &Key::from(n)) >> 58) as usize] += 1);
        assert!(counts.iter().all(|count| (200..5_000).contains(count)), "{counts:?}");
    }
}
