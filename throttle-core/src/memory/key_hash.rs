use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher13;

use crate::key::Key;

/// Turns keys into 128-bit numbers that tell nothing about them, under a secret of this process.
///
/// Keys of up to 15 bytes (every address, number and short text) are permuted: different keys give different numbers,
/// always. Longer ones are digested with SipHash-1-3 to 128 bits. The number also places the key in the table, so without
/// the secret nobody can choose keys that collide.
#[derive(Clone)]
pub(super) struct Seal {
    whiten: u128,
    multiply: [u128; 2],
    sip: SipHasher13,
}

/// A sealed key. Permuted and digested keys are told apart by the flag, so the two kinds never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    pub(super) number: u128,
    pub(super) digested: bool,
    /// Its top bits choose the shard.
    pub(super) lane: u64,
}

impl Seal {
    /// With a secret from the operating system's random source.
    pub(super) fn random() -> Self {
        // `RandomState` is std's way to random keys; its hash of anything is a secret of this process.
        let random = || u128::from(RandomState::new().hash_one(0)) << 64 | u128::from(RandomState::new().hash_one(1));
        Self {
            whiten: random(),
            multiply: [random() | 1, random() | 1],
            sip: SipHasher13::new_with_key(&random().to_le_bytes()),
        }
    }

    #[inline]
    pub(super) fn seal(&self, key: &Key) -> Sealed {
        match key.as_number() {
            Some(number) => self.permute(number),
            None => self.digest(key.expose_bytes()),
        }
    }

    /// Whitening, then twice a multiplication by a secret odd number with the high half folded into the low one. Each
    /// step can be undone, so no two numbers meet; multiplying by a secret is a universal hash, so nobody who does not
    /// know it can aim.
    ///
    /// Both steps choose the shard: after one, keys that count upwards would spread unevenly under some secrets.
    #[inline]
    fn permute(&self, number: u128) -> Sealed {
        let number = self.multiply.iter().fold(number ^ self.whiten, |number, multiplier| {
            let mixed = number.wrapping_mul(*multiplier);
            mixed ^ (mixed >> 64)
        });
        Sealed { number, digested: false, lane: (number >> 64) as u64 }
    }

    fn digest(&self, bytes: &[u8]) -> Sealed {
        let number = self.sip.hash(bytes).as_u128();
        Sealed { number, digested: true, lane: (number >> 64) as u64 }
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(secret)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn law_11_short_keys_never_collide(a: u64, b: u64) {
            let seal = Seal::random();
            prop_assert_eq!(a == b, seal.seal(&a.into()) == seal.seal(&b.into()));
        }

        #[test]
        fn law_11_long_keys_keep_128_bits(a in ".{16,64}", b in ".{16,64}") {
            let seal = Seal::random();
            prop_assert_eq!(a == b, seal.seal(&a.as_str().into()) == seal.seal(&b.as_str().into()));
        }
    }

    #[test]
    fn attack_24_two_processes_place_the_same_keys_differently() {
        let (one, other) = (Seal::random(), Seal::random());
        let top = |seal: &Seal, n: u64| seal.seal(&n.into()).lane >> 52;
        let same = (0..10_000).filter(|&n| top(&one, n) == top(&other, n)).count();
        assert!(same < 50, "{same} of 10,000 keys fall into the same of 4,096 shards");
    }

    #[test]
    fn attack_24_related_keys_spread_over_all_shards() {
        let seal = Seal::random();
        let mut shards = vec![0_u32; 1024];
        for n in 0..100_000_u64 {
            let key = Key::from(std::net::IpAddr::from((n as u32).to_be_bytes()));
            shards[(seal.seal(&key).lane >> 54) as usize] += 1;
        }
        assert!(shards.iter().all(|&n| (30..200).contains(&n)), "{:?}", shards.iter().max());
    }
}
