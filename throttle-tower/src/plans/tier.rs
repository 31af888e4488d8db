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
///     None => Ok(Tier::named("free")),
/// };
/// assert!(tier_of(Some(Row { per_minute: 250, burst: 20 })).is_ok());
/// let error = tier_of(Some(Row { per_minute: 250, burst: 0 })).unwrap_err();
/// assert_eq!((error.field(), error.value()), ("burst", "0"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier(pub(super) Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Named(String),
    Own(Algorithm),
}

impl Tier {
    /// The tier of that name.
    pub fn named(name: impl Into<String>) -> Self {
        Self(Kind::Named(name.into()))
    }

    /// Numbers of the identity's own, instead of a tier's. They have the algorithm of one of the tiers.
    ///
    /// # Errors
    ///
    /// If a number is out of range, as where a limit is built. The error names the field, the value and the bound. A
    /// lookup that returns it [fails](super::PlansWithoutLookup::lookup); log it there.
    pub fn own(limit: impl IntoAlgorithm) -> Result<Self, ConfigError> {
        Ok(Self(Kind::Own(limit.into_algorithm()?)))
    }
}
