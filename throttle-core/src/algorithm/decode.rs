//! States whose parameters are not known beforehand and are read from their bytes.

use std::time::Duration;

use super::build::IntoAlgorithm;
use super::calendar_quota::CalendarQuota;
use super::dispatch::Algorithm;
use super::encode::read;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::interval_bucket::IntervalBucket;
use super::leaky_bucket::LeakyBucket;
use super::leaky_meter::LeakyMeter;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::token_bucket::TokenBucket;
use super::wire::Numbers;
use crate::error::ConfigError;
use crate::rate::Rate;

impl Algorithm {
    /// The algorithm whose [tag](Self::tag) some bytes begin with. Of its rate only what decides is known.
    pub(crate) fn from_tag(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk::<2>()?;
        let count = if matches!(kind[0], b'c' | b'l') { 2 } else { 3 };
        let numbers: Numbers = read(rest.get(..8 * count)?)?;
        let unsigned = |place: usize| numbers.get(place).and_then(|number| u64::try_from(*number).ok());
        let built = built(*kind, unsigned(0)?, numbers[1], unsigned(2).unwrap_or(0))?.ok()?;
        // An algorithm that cannot be built again is not taken for a similar one.
        bytes.starts_with(&built.tag()).then_some(built)
    }
}

/// What a builder makes of the numbers of a tag.
fn built(kind: [u8; 2], first: u64, second: i64, third: u64) -> Option<Result<Algorithm, ConfigError>> {
    let micros = |count: u64| Duration::from_micros(count);
    let positive = |count: i64| u64::try_from(count).ok().filter(|count| *count > 0);
    // `first` grains drain each µs, and `second` are a unit: so many units in so many µs.
    let paced = || Some(Rate::new(first, micros(positive(second)?)));
    let units = || Some(third / positive(second)?);
    Some(match &kind {
        b"g0" => Gcra::new(paced()?).burst(units()?).into_algorithm(),
        b"t0" => TokenBucket::new(paced()?).burst(units()?).into_algorithm(),
        b"m0" => LeakyMeter::new(paced()?).capacity(units()?).into_algorithm(),
        b"q0" | b"q1" => {
            let wait = third.checked_sub(positive(second)?)?.checked_div(first)?;
            let bucket = LeakyBucket::new(paced()?).max_wait(micros(wait));
            if kind[1] == b'1' { bucket.without_delay().into_algorithm() } else { bucket.into_algorithm() }
        }
        b"i0" | b"i1" | b"i2" => {
            let bucket = IntervalBucket::new(first).refill(positive(second)?, micros(third));
            match kind[1] {
                b'0' => bucket.into_algorithm(),
                b'1' => bucket.aligned().into_algorithm(),
                _ => bucket.quota().into_algorithm(),
            }
        }
        b"f0" => {
            let window = FixedWindow::new(Rate::new(first, micros(positive(second)?)));
            window.offset_micros(third.cast_signed()).into_algorithm()
        }
        b"cd" | b"cw" | b"cm" => {
            let quota = match kind[1] {
                b'd' => CalendarQuota::daily(first),
                b'w' => CalendarQuota::weekly(first),
                _ => CalendarQuota::monthly(first),
            };
            quota.utc_offset_minutes(i32::try_from(second / 60_000_000).ok()?).into_algorithm()
        }
        b"s0" => {
            let period = positive(second)?.checked_mul(third)?;
            SlidingWindow::new(Rate::new(first, micros(period))).buckets(third).into_algorithm()
        }
        b"l0" => SlidingLog::new(Rate::new(first, micros(positive(second)?))).into_algorithm(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn every_tag_names_the_algorithm_that_wrote_it() {
        let rate = Rate::new(7, Duration::from_micros(30));
        let all: [Result<Algorithm, ConfigError>; 15] = [
            Gcra::new(rate).burst(3).build(),
            TokenBucket::new(rate).burst(11).build(),
            LeakyMeter::new(Rate::per_day(86_400)).build(),
            LeakyBucket::new(rate).max_wait(Duration::from_secs(3)).build(),
            LeakyBucket::new(rate).max_wait(Duration::from_secs(3)).without_delay().build(),
            IntervalBucket::new(10).refill(3, Duration::from_secs(5)).build(),
            IntervalBucket::new(10).refill(3, Duration::from_secs(5)).aligned().build(),
            CalendarQuota::rolling(10, Duration::from_secs(5)).build(),
            CalendarQuota::fixed(10, Duration::from_secs(5)).build(),
            FixedWindow::new(rate).offset(Duration::from_micros(12)).build(),
            CalendarQuota::daily(10).utc_offset_minutes(-345).build(),
            CalendarQuota::weekly(10).build(),
            CalendarQuota::monthly(10).utc_offset_minutes(60).build(),
            SlidingWindow::new(Rate::per_minute(12)).buckets(4).build(),
            SlidingLog::new(Rate::per_minute(12)).build(),
        ];
        for algorithm in all {
            let algorithm = algorithm.unwrap();
            let (state, _) = algorithm.decide(algorithm.fresh(), Timestamp::from_micros(77), 2);
            let bytes = state.to_wire(&algorithm).unwrap();
            assert!(Algorithm::from_tag(&bytes).unwrap().is_alike(&algorithm), "{algorithm:?}");
            assert_eq!(Algorithm::from_tag(&bytes[..9]), None, "cut short");
        }
        assert_eq!(Algorithm::from_tag(b"x0________________________"), None);
    }

    /// Numbers that no builder takes, or that it would tell otherwise.
    #[test]
    fn a_tag_that_no_builder_writes_names_no_algorithm() {
        let read = |kind: &[u8; 2], numbers: &[f64]| {
            let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            Algorithm::from_tag(&[&kind[..], &numbers].concat())
        };
        assert!(read(b"g0", &[1.0, 2.0, 6.0]).is_some());
        for kind in [b"g0", b"t0", b"m0", b"q0", b"q1", b"i0", b"i1", b"i2", b"f0", b"s0"] {
            // A rate that is not in lowest terms, or units that are no whole number of grains.
            let odd = [[2.0, 4.0, 12.0], [1.0, 2.0, 7.0], [0.5, 2.0, 6.0]];
            let zeros = [[0.0, 2.0, 6.0], [1.0, 0.0, 6.0], [1.0, 2.0, 0.0], [1.0, -2.0, 6.0], [1.0, 2.0, -6.0]];
            let all = if b"gtm".contains(&kind[0]) { &odd[..] } else { &odd[2..] };
            for numbers in all.iter().chain(if b"gtms".contains(&kind[0]) { &zeros[..] } else { &zeros[..2] }) {
                assert_eq!(read(kind, numbers), None, "{numbers:?} of {}", kind.escape_ascii());
            }
        }
        for kind in [b"cd", b"cw", b"cm"] {
            assert!(read(kind, &[5.0, 3_600_000_000.0]).is_some());
            for numbers in [[0.0, 0.0], [5.0, 1.0], [5.0, 51_000_000_000.0], [5.0, 257_698_037_760_000_000.0]] {
                assert_eq!(read(kind, &numbers), None, "{numbers:?}");
            }
        }
        assert_eq!(read(b"s0", &[1.0, 4_503_599_627_370_496.0, 4_503_599_627_370_496.0]), None);
        assert_eq!((read(b"l0", &[0.0, 5.0]), read(b"l0", &[5.0, 0.0])), (None, None));
    }
}
