//! What models cost. The unit of the budget is the micro-dollar, a millionth of a dollar, so that
//! prices per million tokens in dollars are prices per token in units.

/// Millionths of a micro-dollar for a token: what a million tokens cost in micro-dollars.
pub struct Price {
    pub input: u64,
    pub output: u64,
}

/// The dearest stands last.
const PRICES: [(&str, Price); 3] = [
    (
        "small",
        Price {
            input: 150_000,
            output: 600_000,
        },
    ), // $0.15 and $0.60 for a million tokens
    (
        "large",
        Price {
            input: 2_500_000,
            output: 10_000_000,
        },
    ), // $2.50 and $10
    (
        "giant",
        Price {
            input: 15_000_000,
            output: 75_000_000,
        },
    ), // $15 and $75
];

pub fn price_of(model: &str) -> Option<&'static Price> {
    PRICES
        .iter()
        .find(|(name, _)| *name == model)
        .map(|(_, price)| price)
}

/// The price of a model that may be any.
pub fn dearest() -> &'static Price {
    &PRICES[PRICES.len() - 1].1
}

impl Price {
    /// Micro-dollars, rounded up once for the whole request: many small requests are not free.
    pub fn of(&self, input: u64, output: u64) -> u64 {
        let millionths = u128::from(input) * u128::from(self.input)
            + u128::from(output) * u128::from(self.output);
        u64::try_from(millionths.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}
