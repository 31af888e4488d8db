use super::tier::Tier;
use super::tier_lookup::LookupFailed;

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
