use throttle_core::{Algorithm, ConfigError, IntoAlgorithm};

use crate::limit::check_refuses;

/// What a lookup finds out about an identity: the name of a tier, or parameters of the identity's
/// own, for example the numbers in a customer's row of a database.
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

    /// Parameters of the identity's own, instead of a tier's.
    ///
    /// * **Invalid parameters.** If no limit can have them (a rate or a burst of 0), if they delay
    ///   requests ([`LeakyBucket`](crate::LeakyBucket)), or if they take more than 100 times as
    ///   long as one of the tiers to recover from full use, or the reverse, the last known tier
    ///   applies, as after a [failed lookup](super::PlansWithoutLookup::lookup). The time to
    ///   recover is the burst divided by the rate; in which period the rate is written makes no
    ///   difference. A stricter row is not used either: the identity then has the limit of its last
    ///   known tier. That is logged at most once a minute for each limit, with the field, the value
    ///   and the bound. To do something else about it, look at the [error](Self::error), or check
    ///   them with [`Policy::own`](throttle_core::Policy::own).
    /// * **Parameters that the store does not enforce**, such as a sliding log of more than 10,000
    ///   units on Redis: their requests are refused with 503, whatever
    ///   [`on_error`](crate::Limit::on_error) says. The store has not failed, and to pass them on
    ///   would lift every limit of the layer for this identity, for as long as its row says so.
    ///   That is logged like invalid parameters.
    /// * **How many.** Each identity may have different parameters; there is no bound on their
    ///   number.
    /// * **Reports** call the tier `own` and number it
    ///   [`Policy::OWN`](throttle_core::Policy::OWN), 255.
    ///
    /// A request with such parameters costs some allocations more than another one: its headers and
    /// its report are made for it alone.
    pub fn own(limit: impl IntoAlgorithm) -> Self {
        Self(Kind::Own(
            limit
                .into_algorithm()
                .and_then(|own| check_refuses(&own).map(|()| own)),
        ))
    }

    /// What is wrong with parameters of the identity's own in themselves.
    #[must_use]
    pub fn error(&self) -> Option<&ConfigError> {
        if let Self(Kind::Own(Err(error))) = self {
            Some(error)
        } else {
            None
        }
    }
}

/// A lookup that returned no answer: see [`IntoTier::into_tier`](super::IntoTier::into_tier).
///
/// ```
/// use throttle_tower::plans::{IntoTier, LookupFailed, Tier};
///
/// let answer: Result<Option<&str>, std::fmt::Error> = Err(std::fmt::Error);
/// assert_eq!(answer.into_tier(), Err(LookupFailed));
/// assert_eq!(Some("pro").into_tier(), Ok(Some(Tier::named("pro"))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupFailed;

/// The answer of a lookup: `Option` or `Result<Option<_>, _>` of a tier's name, or of a [`Tier`],
/// which may also be parameters of the identity's own.
///
/// ```
/// use throttle_tower::plans::{IntoTier, Tier};
///
/// fn is_an_answer<T: IntoTier>(_: T) -> bool {
///     true
/// }
/// assert!(is_an_answer(Some("pro")));
/// assert!(is_an_answer(Ok::<Option<String>, std::io::Error>(None)));
/// assert!(is_an_answer(Some(Tier::named("pro"))));
/// ```
///
/// # Contract
///
/// ## The name of a tier
///
/// The name is compared with the tiers of the limit, letter by letter. A name that no tier has
/// counts as `None`.
///
/// ## Parameters
///
/// [`Tier::own`] returns the parameters themselves.
///
/// ## `None`
///
/// `None` says that the identity has no tier. The tier of [`unknown`](crate::plans::Plans::unknown)
/// applies, and the answer is remembered like any other.
///
/// ## An error
///
/// An error says nothing about the identity. Its last known tier applies, and the lookup is
/// repeated soon. The error itself is dropped, so log or count it in the lookup.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a lookup answers",
    label = "expected `Option` or `Result<Option<_>, _>` of a tier's name, such as `Some(\"pro\")`"
)]
pub trait IntoTier {
    /// Returns the tier, if the identity has one. A program that keeps lookups of several types in
    /// one list calls it.
    ///
    /// # Errors
    ///
    /// If the lookup failed.
    fn into_tier(self) -> Result<Option<Tier>, LookupFailed>;
}

impl<N: AsRef<str>> IntoTier for Option<N> {
    fn into_tier(self) -> Result<Option<Tier>, LookupFailed> {
        Ok(self.map(|name| Tier::named(name.as_ref())))
    }
}

impl<N: AsRef<str>, E> IntoTier for Result<Option<N>, E> {
    fn into_tier(self) -> Result<Option<Tier>, LookupFailed> {
        self.map_err(|_| LookupFailed)?.into_tier()
    }
}

impl IntoTier for Option<Tier> {
    fn into_tier(self) -> Result<Option<Tier>, LookupFailed> {
        Ok(self)
    }
}

impl<E> IntoTier for Result<Option<Tier>, E> {
    fn into_tier(self) -> Result<Option<Tier>, LookupFailed> {
        self.map_err(|_| LookupFailed)
    }
}
