/// A divisor with its reciprocal, so that dividing is a multiplication: a 64-bit division takes up
/// to ninety cycles, and every decision does one or more by numbers that the policy fixes.
///
/// For dividends below 2^63 the quotient is exact (Granlund and Montgomery 1994, theorem 4.2): with
/// c = ceil(log2 d) and m = ceil(2^(63 + c) / d), the excess m·d − 2^(63 + c) is below d <= 2^c, so
/// it adds less than 1/d to n/d, which cannot carry it past the next whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Divisor {
    value: u64,
    /// m, from 2^63 and below 2^64.
    reciprocal: u64,
    /// c.
    shift: u32,
}

impl Divisor {
    /// A divisor from 1 to 2^53 − 1.
    pub(crate) fn new(value: u64) -> Self {
        let shift = value.next_power_of_two().trailing_zeros();
        Self {
            value,
            reciprocal: (1_u128 << (63 + shift)).div_ceil(u128::from(value)) as u64,
            shift,
        }
    }

    #[inline]
    pub(crate) const fn get(self) -> u64 {
        self.value
    }

    /// The quotient of a dividend below 2^63, rounded down.
    #[inline]
    pub(crate) const fn divide(self, dividend: u64) -> u64 {
        let product = (dividend << 1) as u128 * self.reciprocal as u128;
        (product >> 64) as u64 >> self.shift
    }

    /// Quotient and remainder.
    #[inline]
    pub(crate) const fn split(self, dividend: u64) -> (u64, u64) {
        // Most rates that people write drain one grain a microsecond. A branch that is guessed
        // right takes no time at all.
        if self.value == 1 {
            return (dividend, 0);
        }
        let quotient = self.divide(dividend);
        (quotient, dividend - quotient * self.value)
    }

    /// The quotient, rounded up.
    #[inline]
    pub(crate) const fn divide_up(self, dividend: u64) -> u64 {
        let (quotient, rest) = self.split(dividend);
        quotient + (rest > 0) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::EXACT_MAX;

    const MOST: u64 = (1 << 63) - 1;

    /// Numbers of every size, and those next to powers of two.
    fn number() -> impl Strategy<Value = u64> {
        (0..63_u32, any::<u64>(), -2_i64..=2).prop_map(|(bits, noise, offset)| {
            let noise = if noise & 1 == 0 {
                0
            } else {
                noise >> (64 - bits).min(63)
            };
            ((1_u64 << bits) | noise)
                .saturating_add_signed(offset)
                .clamp(1, MOST)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn divides_as_the_processor_does(
            dividend in number(),
            divisor in number().prop_map(|n| n.min(EXACT_MAX)),
            times in number(),
        ) {
            let d = Divisor::new(divisor);
            // Multiples and their neighbours are where a quotient would first be wrong.
            let multiple = divisor * (times % (MOST / divisor) + 1);
            for n in [dividend, multiple - 1, multiple, (multiple + 1).min(MOST), 0, MOST] {
                prop_assert_eq!(d.split(n), (n / divisor, n % divisor), "{} / {}", n, divisor);
                prop_assert_eq!(d.divide(n), n / divisor, "{} / {}", n, divisor);
                prop_assert_eq!(d.divide_up(n), n.div_ceil(divisor));
            }
        }
    }
}
