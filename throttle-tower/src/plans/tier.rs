use throttle_core::{Algorithm, ConfigError, IntoAlgorithm};

/// What a lookup finds out about an identity: the name of a tier, or numbers of the identity's own, for example those in
/// a customer's row of a database.
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
    /// A lookup that returns a number which no limit can have, such as a rate or a burst of 0, counts as
    /// [failed](super::PlansWithoutLookup::lookup). The first such row of a limit is logged, with the field, the value
    /// and the bound. To do something else about it, look at the [error](Self::error).
    pub fn own(limit: impl IntoAlgorithm) -> Self {
        Self(Kind::Own(limit.into_algorithm()))
    }

    /// What is wrong with numbers of the identity's own.
    #[must_use]
    pub fn error(&self) -> Option<&ConfigError> {
        if let Self(Kind::Own(Err(error))) = self { Some(error) } else { None }
    }
}
