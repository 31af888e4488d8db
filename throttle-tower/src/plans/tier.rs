use throttle_core::{Algorithm, ConfigError, IntoAlgorithm};

/// What a lookup finds out about an identity: the name of a tier, or numbers of the identity's own, for example those
/// in a customer's row of a database.
///
/// ```
/// use throttle_tower::plans::Tier;
/// use throttle_tower::{Gcra, Rate};
///
/// # #[derive(Debug)]
/// # struct Row { per_minute: u64, burst: u64 }
/// let tier_of = |row: Option<Row>| match row {
///     Some(row) => Tier::own(Gcra::new(Rate::per_minute(row.per_minute)).burst(row.burst)),
///     None => Tier::named("free"),
/// };
/// assert!(tier_of(Some(Row { per_minute: 250, burst: 20 })).error().is_none());
/// let wrong = tier_of(Some(Row { per_minute: 250, burst: 0 }));
/// assert_eq!(wrong.error().map(|error| (error.field(), error.value())), Some(("burst", "0")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier(pub(super) Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Named(String),
    Own(Result<Algorithm, ConfigError>),
}

impl Tier {
    /// The tier of that name.
    pub fn named(name: impl Into<String>) -> Self {
        Self(Kind::Named(name.into()))
    }

    /// Numbers of the identity's own, instead of a tier's. They have the algorithm of one of the tiers.
    ///
    /// * **Invalid numbers.** If no limit can have the numbers (a rate or a burst of 0), if none of the tiers has their
    ///   algorithm, or with [`Carry::Proportional`](crate::Carry::Proportional) (two customers' numbers would have to
    ///   be in proportion to each other), the last known tier applies, as after a
    ///   [failed lookup](super::PlansWithoutLookup::lookup). That is logged at most once a minute for each limit, with
    ///   the field, the value and the bound. To do something else about it, look at the [error](Self::error).
    /// * **Numbers that the store does not enforce**, such as a sliding log of more than 10,000 units on Redis: their
    ///   requests are refused with 503, whatever [`on_error`](super::Plans::on_error) says. The store has not failed,
    ///   and to pass them on would lift every limit of the layer for this identity, for as long as its row says so. A
    ///   tier would not do instead, because it may forget what the identity has used. That is logged like invalid
    ///   numbers. Nor does the store enforce valid ones while another layer has
    ///   [replaced](super::Plans::replace_existing) the tiers by some of other algorithms, or by some that are carried
    ///   over in proportion.
    /// * **How many.** Each identity may have other numbers. A layer keeps the limits for 1,024 different ones ready
    ///   (with several plans, for as many combinations). Further ones displace those that were not used for long. They
    ///   are made again when they are needed, which costs time and forgets nothing.
    /// * **Reports** call the tier `own` and number it [`Policy::OWN`](throttle_core::Policy::OWN), 255.
    ///
    /// In memory, a decision with such numbers costs somewhat more than another one, and the key about 200 bytes.
    pub fn own(limit: impl IntoAlgorithm) -> Self {
        Self(Kind::Own(limit.into_algorithm()))
    }

    /// What is wrong with numbers of the identity's own.
    #[must_use]
    pub fn error(&self) -> Option<&ConfigError> {
        if let Self(Kind::Own(Err(error))) = self { Some(error) } else { None }
    }
}
