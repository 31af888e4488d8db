//! Keys as 128-bit numbers that reveal nothing about them.

use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher13;

use crate::key::Key;

/// Turns keys into 128-bit numbers under a secret of this process.
///
/// Keys of up to 15 bytes (every address, number and short text) are permuted: different keys
/// always give different numbers. Longer keys are digested with SipHash-1-3 to 128 bits. The number
/// also chooses the key's slot in the table, so a client that does not know the secret cannot
/// choose keys that collide.
#[derive(Clone)]
pub(super) struct KeyHasher {
    whiten: u128,
    multiply: u128,
    spread: u64,
    sip: SipHasher13,
}

/// A hashed key. The flag tells permuted keys from digested ones, so the two kinds never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyHash {
    pub(super) number: u128,
    pub(super) digested: bool,
}

impl KeyHash {
    /// The top bits choose the shard.
    #[inline]
    pub(super) const fn shard_bits(self) -> u64 {
        (self.number >> 64) as u64
    }
}

impl KeyHasher {
    /// A hasher with a secret from the operating system's random source.
    pub(super) fn random() -> Self {
        // The standard library's way to random keys is `RandomState`; its hash of anything is a
        // secret of this process.
        let random = || match cfg!(all(test, throttle_models)) {
            // The model checker runs a model again and again, and must find the same each time.
            true => 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d,
            false => {
                u128::from(RandomState::new().hash_one(0)) << 64
                    | u128::from(RandomState::new().hash_one(1))
            }
        };
        let mut secret = [0; 56];
        for part in secret.chunks_mut(16) {
            part.copy_from_slice(&random().to_le_bytes()[..part.len()]);
        }
        Self::of_secret(&secret)
    }

    /// A hasher with a known secret: it finds the keys of the store that the secret is of.
    pub(super) fn of_secret(secret: &[u8; 56]) -> Self {
        let [whiten, multiply, sip] = [0, 16, 32].map(|at| {
            let part = secret[at..].first_chunk().expect("16 bytes of 56");
            u128::from_le_bytes(*part)
        });
        let spread = u64::from_le_bytes(*secret.last_chunk().expect("8 bytes of 56"));
        let sip = SipHasher13::new_with_key(&sip.to_le_bytes());
        // Only odd factors can be undone.
        Self {
            whiten,
            multiply: multiply | 1,
            spread: spread | 1,
            sip,
        }
    }

    pub(super) fn secret(&self) -> [u8; 56] {
        let mut secret = [0; 56];
        secret[..16].copy_from_slice(&self.whiten.to_le_bytes());
        secret[16..32].copy_from_slice(&self.multiply.to_le_bytes());
        secret[32..48].copy_from_slice(&self.sip.key());
        secret[48..].copy_from_slice(&self.spread.to_le_bytes());
        secret
    }

    #[inline]
    pub(super) fn hash(&self, key: &Key) -> KeyHash {
        match key.as_number() {
            Some(number) => KeyHash {
                number: self.permute(number),
                digested: false,
            },
            None => KeyHash {
                number: self.digest(key.expose_bytes()),
                digested: true,
            },
        }
    }

    /// Whitens, multiplies by a secret odd number and folds the high half into the low one, which
    /// chooses the slot. Each step can be undone, so no two numbers meet. Multiplication by a
    /// secret is a universal hash, so a client that does not know the secret cannot aim.
    ///
    /// The high half, which chooses the shard, is then mixed with the folded one: without that,
    /// keys that count upwards would spread unevenly under some secrets.
    #[inline]
    fn permute(&self, number: u128) -> u128 {
        let mixed = (number ^ self.whiten).wrapping_mul(self.multiply);
        let high = (mixed >> 64) as u64;
        let low = mixed as u64 ^ high;
        let high = high.wrapping_add(low.wrapping_mul(self.spread));
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline(never)]
    fn digest(&self, bytes: &[u8]) -> u128 {
        self.sip.hash(bytes).as_u128()
    }
}

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHasher(secret)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn law_11_short_keys_never_collide(a: u64, b: u64) {
            let hasher = KeyHasher::random();
            prop_assert_eq!(a == b, hasher.hash(&a.into()) == hasher.hash(&b.into()));
        }

        #[test]
        fn law_11_long_keys_keep_128_bits(a in ".{16,64}", b in ".{16,64}") {
            let hasher = KeyHasher::random();
            prop_assert_eq!(a == b, hasher.hash(&a.as_str().into()) == hasher.hash(&b.as_str().into()));
        }
    }

    /// Numbers that can be found again from what they become never meet, and random ones would show
    /// that in no time that a test has.
    #[test]
    fn law_11_each_step_of_a_short_keys_number_can_be_undone() {
        for hasher in (0..32).map(|_| KeyHasher::random()) {
            // Each round doubles the bits in which this is the inverse.
            let inverse = (0..7).fold(hasher.multiply, |inverse, _| {
                let product = hasher.multiply.wrapping_mul(inverse);
                inverse.wrapping_mul(2_u128.wrapping_sub(product))
            });
            for number in (0..128).map(|bit| 1_u128 << bit) {
                let permuted = hasher.permute(number);
                let low = permuted as u64;
                let high = (permuted >> 64) as u64;
                let high = high.wrapping_sub(low.wrapping_mul(hasher.spread));
                let mixed = u128::from(high) << 64 | u128::from(low ^ high);
                assert_eq!(mixed.wrapping_mul(inverse) ^ hasher.whiten, number);
            }
        }
    }

    #[test]
    fn law_11_a_short_key_and_a_long_one_never_meet() {
        let hasher = KeyHasher::random();
        let is_digested = |len: usize| hasher.hash(&"x".repeat(len).into()).digested;
        assert!(
            !is_digested(0) && !is_digested(13) && is_digested(14) && is_digested(300),
            "fifteen bytes with its length"
        );
        for hasher in (0..32).map(|_| KeyHasher::random()) {
            assert_eq!(
                (hasher.multiply & 1, hasher.spread & 1),
                (1, 1),
                "only odd factors can be undone"
            );
        }
    }

    #[test]
    fn attack_24_a_hasher_shows_nothing_of_its_secret() {
        assert_eq!(format!("{:?}", KeyHasher::random()), "KeyHasher(secret)");
    }

    #[test]
    fn attack_24_no_key_has_the_same_number_in_two_processes() {
        let (one, other) = (KeyHasher::random(), KeyHasher::random());
        assert!(
            one.secret().chunks(8).all(|part| part != [0; 8]),
            "a part that is not random"
        );
        let keys = [
            Key::CONSTANT,
            0.into(),
            1.into(),
            "ada".into(),
            "x".repeat(15).into(),
            "x".repeat(300).into(),
        ];
        for key in keys {
            assert_ne!(one.hash(&key), other.hash(&key), "{key:?}");
        }
    }

    /// A multiplier of 1 leaves a number as it is: what is folded and mixed afterwards must spread
    /// the keys.
    #[test]
    fn attack_24_a_poor_multiplier_spreads_keys_that_count_upwards() {
        let hasher = KeyHasher {
            multiply: 1,
            spread: 0x9e37_79b9_7f4a_7c15,
            ..KeyHasher::random()
        };
        let mut shards: Vec<u64> = (0..200_u64)
            .map(|n| hasher.hash(&n.into()).shard_bits() >> 54)
            .collect();
        shards.sort_unstable();
        shards.dedup();
        assert!(
            shards.len() > 100,
            "200 keys fall into {} of 1,024 shards",
            shards.len()
        );
    }

    #[test]
    fn attack_24_two_processes_place_the_same_keys_differently() {
        let (one, other) = (KeyHasher::random(), KeyHasher::random());
        let top = |hasher: &KeyHasher, n: u64| hasher.hash(&n.into()).shard_bits() >> 52;
        let same = (0..10_000)
            .filter(|&n| top(&one, n) == top(&other, n))
            .count();
        assert!(
            same < 50,
            "{same} of 10,000 keys fall into the same of 4,096 shards"
        );
    }

    #[test]
    fn attack_24_related_keys_spread_over_all_shards() {
        let hasher = KeyHasher::random();
        let mut shards = vec![0_u32; 1024];
        for n in 0..100_000_u64 {
            let key = Key::from(std::net::IpAddr::from((n as u32).to_be_bytes()));
            shards[(hasher.hash(&key).shard_bits() >> 54) as usize] += 1;
        }
        assert!(
            shards.iter().all(|&n| (30..200).contains(&n)),
            "{:?}",
            shards.iter().max()
        );
    }
}
