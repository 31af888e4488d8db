use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::time::micros;

/// A hasher with keys of its own is random enough for waits.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// A wait of at most so long.
pub(crate) fn within(most: Duration) -> Duration {
    Duration::from_micros(random() % (micros(most) + 1))
}

/// Lengthens a wait by up to `percent` of it. `random` chooses by how much.
pub(crate) fn lengthen(wait_us: u64, percent: u8, random: u64) -> u64 {
    let most = u128::from(wait_us) * u128::from(percent) / 100;
    wait_us.saturating_add(((most * u128::from(random)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_lengthened_by_at_most_the_percentage() {
        assert_eq!(lengthen(1_000, 0, u64::MAX), 1_000);
        assert_eq!(lengthen(1_000, 20, 0), 1_000);
        assert_eq!(lengthen(1_000, 20, u64::MAX / 2), 1_099);
        assert_eq!(lengthen(1_000, 20, u64::MAX), 1_199);
        assert_eq!(lengthen(u64::MAX, 100, u64::MAX), u64::MAX);
    }

    #[test]
    fn random_wait_reaches_its_bound_and_never_exceeds_it() {
        let longest = |most| (0..1_000).map(|_| within(most)).max().unwrap();
        assert_eq!(longest(Duration::ZERO), Duration::ZERO);
        let micro = Duration::from_micros(1);
        assert_eq!(
            [longest(micro), longest(3 * micro)],
            [micro, 3 * micro],
            "the bound itself is possible"
        );
    }
}
