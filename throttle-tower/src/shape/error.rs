use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use throttle_core::BackendError;

use crate::usage::UsageError;

/// A call that was refused because it would have waited too long, or had. It took nothing of the
/// pace.
///
/// Mostly this is known at once. Over a store it may be seen later, when other processes have taken
/// turns.
///
/// ```
/// use throttle_tower::shape::{Bound, Shaper};
/// use throttle_tower::{LeakyBucket, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper =
///     Shaper::new(LeakyBucket::new(Rate::per_second(1)).max_wait(std::time::Duration::ZERO))?;
/// shaper.schedule("key", 1).await?;
/// let error = shaper.schedule("key", 1).await.unwrap_err();
/// let full = error.queue_full().expect("it would wait");
/// assert_eq!(full.bound, Bound::MaxWait);
/// assert!(full.retry_after.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueFull {
    /// The bound that the call would have exceeded.
    pub bound: Bound,
    /// How long until the same call is accepted if nothing else happens; `None` if no wait helps,
    /// or if it is not known.
    pub retry_after: Option<Duration>,
    /// The bound itself: the longest time until the last unit of the call is due. For
    /// [`Bound::MaxWaiting`], zero.
    pub allowed: Duration,
    /// The unit that needs the longest, if that is not requests: see
    /// [`by_unit`](super::ShaperBuilder::by_unit).
    pub unit: Option<&'static str>,
}

/// A bound on waiting: see [`QueueFull::bound`].
///
/// ```
/// use throttle_tower::shape::{Bound, Shaper};
/// use throttle_tower::{LeakyBucket, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = Shaper::builder(LeakyBucket::new(Rate::per_second(1))).max_waiting(1).build()?;
/// shaper.schedule("key", 1).await?;
/// let (waits, refused) = tokio::join!(shaper.schedule("key", 1), shaper.schedule("key", 1));
/// waits?;
/// assert_eq!(refused.unwrap_err().queue_full().map(|full| full.bound), Some(Bound::MaxWaiting));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bound {
    /// The bucket's longest wait.
    MaxWait,
    /// The call's own deadline.
    Deadline,
    /// The number of calls that may wait at once, whatever their keys.
    MaxWaiting,
    /// The bucket's longest wait, less the time of the reserve that the call's
    /// [class](crate::ShapeLayer::priority) leaves to higher ones.
    Class,
}

impl QueueFull {
    /// As many calls wait as may.
    pub(super) const TOO_MANY: Self = Self {
        bound: Bound::MaxWaiting,
        retry_after: None,
        allowed: Duration::ZERO,
        unit: None,
    };
}

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = match self.bound {
            Bound::MaxWait => "max_wait",
            Bound::Deadline => "its deadline",
            Bound::MaxWaiting => "",
            Bound::Class => "its class may",
        };
        match (self.bound, self.unit) {
            (Bound::MaxWaiting, _) => {
                f.write_str("as many calls are waiting as max_waiting allows")?;
            }
            (_, None) => write!(
                f,
                "the call would wait longer than {bound}, {:?}",
                self.allowed
            )?,
            (_, Some(unit)) => write!(
                f,
                "the {unit} of the call would wait longer than {bound}, {:?}",
                self.allowed
            )?,
        }
        match (self.retry_after, self.bound, self.unit) {
            (Some(wait), ..) => write!(f, "; try again in {wait:?}"),
            (None, Bound::MaxWaiting, _) => f.write_str("; try again later"),
            (None, _, None) => f.write_str("; its cost never fits"),
            (None, _, Some(_)) => f.write_str("; so many never fit"),
        }
    }
}

impl Error for QueueFull {}

/// Why a shaped call has no response.
///
/// `E` is the error of the inner service. Without a service it is `Infallible`, and there is no
/// [`Inner`](Self::Inner).
///
/// ```
/// use throttle_tower::shape::ShapeError;
///
/// let error = ShapeError::Inner("connection refused");
/// assert_eq!(error.queue_full(), None);
/// assert_eq!(error.into_inner(), Some("connection refused"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ShapeError<E = Infallible> {
    /// The call would have waited too long. The service was not called.
    QueueFull(QueueFull),
    /// The store that keeps the schedule failed, and `on_error` is closed. The service was not
    /// called.
    Store(BackendError),
    /// The shaper does not count a unit of that name. The service was not called.
    UnknownUnit(UsageError),
    /// The inner service's error, unchanged.
    Inner(E),
}

impl<E> ShapeError<E> {
    /// The inner service's error, if it is one.
    #[must_use]
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Inner(error) => Some(error),
            Self::QueueFull(_) | Self::Store(_) | Self::UnknownUnit(_) => None,
        }
    }

    /// The refusal, if it is one.
    #[must_use]
    pub const fn queue_full(&self) -> Option<&QueueFull> {
        match self {
            Self::QueueFull(full) => Some(full),
            Self::Store(_) | Self::UnknownUnit(_) | Self::Inner(_) => None,
        }
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> ShapeError<E> {
    /// The error as `tower`'s own layers return it. The inner service's error is boxed as it is.
    #[must_use]
    pub fn into_boxed(self) -> Box<dyn Error + Send + Sync> {
        match self {
            Self::QueueFull(full) => full.into(),
            Self::Store(error) => error.into(),
            Self::UnknownUnit(error) => error.into(),
            Self::Inner(error) => error.into(),
        }
    }
}

impl<E> From<QueueFull> for ShapeError<E> {
    fn from(full: QueueFull) -> Self {
        Self::QueueFull(full)
    }
}

impl ShapeError {
    /// The same error for a service with errors of its own.
    pub(crate) fn widen<E>(self) -> ShapeError<E> {
        match self {
            Self::QueueFull(full) => ShapeError::QueueFull(full),
            Self::Store(error) => ShapeError::Store(error),
            Self::UnknownUnit(error) => ShapeError::UnknownUnit(error),
            Self::Inner(never) => match never {},
        }
    }
}

impl<E: fmt::Display> fmt::Display for ShapeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull(full) => full.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::UnknownUnit(error) => error.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for ShapeError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::QueueFull(full) => full.source(),
            Self::Store(error) => error.source(),
            Self::UnknownUnit(error) => error.source(),
            Self::Inner(error) => error.source(),
        }
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::BackendErrorKind;

    use super::*;

    const BOUNDS: [Bound; 4] = [
        Bound::MaxWait,
        Bound::Deadline,
        Bound::MaxWaiting,
        Bound::Class,
    ];

    fn full(bound: Bound, retry_after: Option<u64>) -> QueueFull {
        let allowed = Duration::from_secs(2);
        QueueFull {
            bound,
            retry_after: retry_after.map(Duration::from_millis),
            allowed,
            unit: None,
        }
    }

    #[test]
    fn shape_refusal_says_which_bound_and_how_long() {
        let texts = |retry_after| BOUNDS.map(|bound| full(bound, retry_after).to_string());
        assert_eq!(
            texts(Some(1_500)),
            [
                "the call would wait longer than max_wait, 2s; try again in 1.5s",
                "the call would wait longer than its deadline, 2s; try again in 1.5s",
                "as many calls are waiting as max_waiting allows; try again in 1.5s",
                "the call would wait longer than its class may, 2s; try again in 1.5s",
            ]
        );
        assert_eq!(
            texts(None),
            [
                "the call would wait longer than max_wait, 2s; its cost never fits",
                "the call would wait longer than its deadline, 2s; its cost never fits",
                "as many calls are waiting as max_waiting allows; try again later",
                "the call would wait longer than its class may, 2s; its cost never fits",
            ]
        );
    }

    #[test]
    fn shape_refusal_names_the_unit_that_needs_the_longest() {
        let texts = |retry_after| {
            BOUNDS.map(|bound| QueueFull {
                unit: Some("tokens"),
                ..full(bound, retry_after)
            })
        };
        assert_eq!(
            texts(None).map(|full| full.to_string()),
            [
                "the tokens of the call would wait longer than max_wait, 2s; so many never fit",
                "the tokens of the call would wait longer than its deadline, 2s; so many never fit",
                "as many calls are waiting as max_waiting allows; try again later",
                "the tokens of the call would wait longer than its class may, 2s; so many never \
                    fit",
            ]
        );
        let wait = "the tokens of the call would wait longer than max_wait, 2s; try again in 1.5s";
        assert_eq!(texts(Some(1_500))[0].to_string(), wait);
    }

    #[test]
    fn shape_error_is_what_it_was_made_of() {
        let store = || BackendError::new(BackendErrorKind::Timeout);
        let refused: ShapeError<&str> = full(Bound::Deadline, None).into();
        assert_eq!(refused.queue_full(), Some(&full(Bound::Deadline, None)));
        assert_eq!(refused.into_inner(), None);
        let failed: ShapeError<&str> = ShapeError::<Infallible>::Store(store()).widen();
        assert_eq!(
            (failed.queue_full(), failed.to_string()),
            (None, store().to_string())
        );
        assert_eq!(failed.into_inner(), None);
        let widened: ShapeError<&str> = ShapeError::from(full(Bound::MaxWait, Some(7))).widen();
        assert_eq!(widened.queue_full(), Some(&full(Bound::MaxWait, Some(7))));
        assert_eq!(ShapeError::Inner("down").queue_full(), None);
    }

    #[test]
    fn shape_refusal_as_a_response_says_who_is_to_blame() {
        for (bound, status, problem) in [
            (Bound::MaxWait, 429, "#quota-exceeded"),
            (Bound::Deadline, 429, "#quota-exceeded"),
            (Bound::Class, 429, "#quota-exceeded"),
            (Bound::MaxWaiting, 503, "#temporary-reduced-capacity"),
        ] {
            for (retry_after, seconds) in [
                (None, None),
                (Some(0), Some("1")),
                (Some(2_000), Some("2")),
                (Some(2_001), Some("3")),
            ] {
                let response = full(bound, retry_after).response();
                assert_eq!(response.status(), status, "{bound:?}");
                let stated = response
                    .headers()
                    .get("retry-after")
                    .map(|value| value.to_str().unwrap());
                assert_eq!(stated, seconds, "{bound:?}");
                let body = std::str::from_utf8(response.body()).unwrap();
                assert!(body.contains(problem), "{bound:?}: {body}");
            }
        }
    }
}
