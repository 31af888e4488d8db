use throttle_core::{Backend, ConfigError, LeakyBucket, MemoryBackend};

use super::builder::ShaperBuilder;
use super::clock::TokioClock;
use super::shaper::Shaper;

/// The pace of a [`ShapeLayer`](crate::ShapeLayer): a [`LeakyBucket`], for a pace of this process alone; a
/// [`ShaperBuilder`] with its options; or a [`Shaper`] that is also used elsewhere.
///
/// ```
/// use throttle_tower::shape::{IntoShaper, Shaper};
/// use throttle_tower::{LeakyBucket, Rate};
///
/// let bucket = LeakyBucket::new(Rate::per_second(5));
/// assert!(bucket.into_shaper().is_ok());
/// assert!(Shaper::builder(bucket).name("").into_shaper().is_err());
/// ```
///
/// # Contract
///
/// A [`Shaper`] is returned as it is, and shares its schedule with its clones. A bucket or a builder starts a schedule
/// of its own, unless the builder names a schedule that its backend has already.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no pace",
    label = "expected a `LeakyBucket`, a `ShaperBuilder` or a `Shaper`",
    note = "write `LeakyBucket::new(Rate::per_second(5)).max_wait(…)`, or `Shaper::builder(…)` with options around it"
)]
pub trait IntoShaper {
    /// Where the schedule is kept.
    type Backend: Backend;

    /// Builds the shaper.
    ///
    /// # Errors
    ///
    /// As [`ShaperBuilder::build`].
    fn into_shaper(self) -> Result<Shaper<Self::Backend>, ConfigError>;
}

impl IntoShaper for LeakyBucket {
    type Backend = MemoryBackend<TokioClock>;

    fn into_shaper(self) -> Result<Shaper, ConfigError> {
        Shaper::new(self)
    }
}

impl<B: Backend> IntoShaper for ShaperBuilder<B> {
    type Backend = B;

    fn into_shaper(self) -> Result<Shaper<B>, ConfigError> {
        self.build()
    }
}

impl<B: Backend> IntoShaper for Shaper<B> {
    type Backend = B;

    fn into_shaper(self) -> Result<Self, ConfigError> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::Rate;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_bucket_has_the_headroom_of_a_builder_without_options() {
        let bucket = LeakyBucket::new(Rate::per_second(5));
        let rate = bucket.into_shaper().unwrap().rate();
        assert_eq!(rate, Shaper::builder(bucket).into_shaper().unwrap().rate());
        assert_ne!(rate, Rate::per_second(5));
    }
}
