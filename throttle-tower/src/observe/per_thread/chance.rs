use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers by chance, good enough to draw samples. Only one thread draws at a time.
#[derive(Default)]
pub(in crate::observe) struct Chance(AtomicU64);

impl Chance {
    /// A number up to `most`, below 2^32, half of it on average.
    pub(in crate::observe) fn up_to(&self, most: u64) -> u64 {
        // The constants are Knuth's, of MMIX. The high bits of such a sequence are its best.
        let drawn = self.0.load(Ordering::Relaxed);
        let drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0.store(drawn, Ordering::Relaxed);
        ((drawn >> 32) * (most + 1)) >> 32
    }
}
