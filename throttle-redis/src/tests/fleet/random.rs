//! Random numbers that a seed determines.

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// The time to the next of events that are independent of one another and come at `rate` a
    /// second, in nanoseconds.
    pub(super) fn pause(&mut self, rate: f64) -> u64 {
        // Above 0 and at most 1.
        let unit = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-unit.ln() / rate * 1e9) as u64
    }
}
