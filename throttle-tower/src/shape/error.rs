use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use throttle_core::BackendError;
use tokio::time::Instant;

use crate::usage::UsageError;

/// A call that was refused because it would have waited too long, or had. It took nothing of the
/// pace.
///
/// Mostly this is known when the call is made. It may be known later: when a pause of the key
/// begins, or, over a store, when other processes have taken turns.
///
/// ```
/// use throttle_tower::shape::{Bound, Shaper};
/// use throttle_tower::{Pace, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper =
///     Shaper::new(Pace::new(Rate::per_second(1)).max_wait(std::time::Duration::ZERO))?;
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
    /// By how much the call's turn would come too late: the same call is accepted after this time,
    /// if nothing else happens. `None` if no wait helps, or if it is not known.
    pub retry_after: Option<Duration>,
    /// The bound itself: the longest time until the last unit of the call is due. For
    /// [`Bound::MaxWaiting`], zero.
    pub allowed: Duration,
    /// The unit that needs the longest, if that is not requests: see
    /// [`by_unit`](super::ShaperBuilder::by_unit).
    pub unit: Option<&'static str>,
    /// The pause of the call's key, if that is why the call would wait too long.
    pub pause: Option<Pause>,
}

/// A pause of a key: no call of it leaves before its end.
///
/// [`Shaper::paused_until`](super::Shaper::paused_until) returns it, and [`QueueFull::pause`] has
/// it as the cause of a refusal.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::{PauseCause, Shaper};
/// use throttle_tower::{Pace, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = Shaper::new(Pace::new(Rate::per_second(10)))?;
/// shaper.pause("api.example", Duration::from_secs(40));
/// let refused = shaper.schedule("api.example", 1).await.unwrap_err();
/// let pause = refused.queue_full().and_then(|full| full.pause).expect("a pause is the cause");
/// assert_eq!(pause.cause, PauseCause::Program);
/// assert_eq!(pause.until - tokio::time::Instant::now(), Duration::from_secs(40));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pause {
    /// The end of the pause, by the clock of tokio's timers.
    pub until: Instant,
    /// Its cause.
    pub cause: PauseCause,
}

/// The cause of a pause: see [`Pause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PauseCause {
    /// The upstream refused a call, with this status.
    Refusal(StatusCode),
    /// The upstream answered a call, and stated that nothing is left until a reset.
    NothingLeft,
    /// The program: [`Shaper::pause`](super::Shaper::pause), or units that a call
    /// [settled](super::ShapeUsage) without an estimate.
    Program,
    /// Another process of the fleet: see
    /// [`share_pauses`](super::ShaperBuilder::share_pauses).
    Fleet,
}

/// A bound on waiting: see [`QueueFull::bound`].
///
/// ```
/// use throttle_tower::shape::{Bound, Shaper};
/// use throttle_tower::{Pace, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = Shaper::builder(Pace::new(Rate::per_second(1))).max_waiting(1).build()?;
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
    /// The pace's longest wait.
    MaxWait,
    /// The call's own deadline.
    Deadline,
    /// The number of calls that may wait at one time, whatever their keys.
    MaxWaiting,
    /// The pace's longest wait, less the time of the reserve that the call's
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
        pause: None,
    };
}

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Pause { until, cause }) = self.pause {
            let left = ClockTime(until.saturating_duration_since(Instant::now()));
            match cause {
                PauseCause::Refusal(status) => {
                    let status = status.as_u16();
                    write!(f, "the upstream refuses calls for {left} more ({status})")
                }
                PauseCause::NothingLeft => {
                    write!(f, "nothing is left of the upstream's quota for {left}")
                }
                PauseCause::Program => write!(f, "paused by the program for {left} more"),
                PauseCause::Fleet => write!(f, "paused by the fleet for {left} more"),
            }?;
            let allowed = ClockTime(self.allowed);
            let wait = ClockTime(self.retry_after.unwrap_or_default());
            return write!(f, "; the call may wait {allowed}; try again in {wait}");
        }
        let allowed = self.allowed;
        let bound = match self.bound {
            Bound::MaxWait => "max_wait",
            Bound::Deadline => "its deadline",
            Bound::Class => "its class may",
            Bound::MaxWaiting => "",
        };
        let hopeless = match (self.bound, self.unit) {
            (Bound::MaxWaiting, _) => {
                f.write_str("as many calls are waiting as max_waiting allows")?;
                "try again later"
            }
            (_, None) => {
                write!(f, "the call would wait longer than {bound}, {allowed:?}")?;
                "its cost never fits"
            }
            (_, Some(unit)) => {
                write!(
                    f,
                    "the {unit} of the call would wait longer than {bound}, {allowed:?}"
                )?;
                "so many never fit"
            }
        };
        match self.retry_after {
            Some(wait) => write!(f, "; try again in {wait:?}"),
            None => write!(f, "; {hopeless}"),
        }
    }
}

impl Error for QueueFull {}

/// A duration as `1h 59m 50s`, rounded up to seconds; below a minute exactly.
struct ClockTime(Duration);

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_secs(60) {
            return write!(f, "{:?}", self.0);
        }
        let seconds = self
            .0
            .as_secs()
            .saturating_add(u64::from(self.0.subsec_nanos() > 0));
        let mut space = "";
        for (count, unit) in [
            (seconds / 3_600, 'h'),
            (seconds / 60 % 60, 'm'),
            (seconds % 60, 's'),
        ] {
            if count > 0 {
                write!(f, "{space}{count}{unit}")?;
                space = " ";
            }
        }
        Ok(())
    }
}

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

    /// The time after which the same call is accepted, if nothing else happens: for a retry outside
    /// of the shaper. `None` if no wait helps, if the time is not known, and for errors other than
    /// [`QueueFull`](Self::QueueFull).
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::{ShapeError, Shaper};
    /// use throttle_tower::{Pace, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(30));
    /// let shaper = Shaper::new(pace)?;
    /// shaper.pause("api.example", Duration::from_secs(90));
    /// let refused = shaper.schedule("api.example", 1).await.unwrap_err();
    /// assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
    /// assert_eq!(ShapeError::Inner("down").retry_after(), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.queue_full()?.retry_after
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
            Self::QueueFull(_) | Self::UnknownUnit(_) => None,
            Self::Store(error) => error.source(),
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
            pause: None,
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

    #[tokio::test(start_paused = true)]
    async fn shape_refusal_because_of_a_pause_names_it() {
        let text = |seconds, cause, retry_after| {
            let until = Instant::now() + Duration::from_secs(seconds);
            let pause = Some(Pause { until, cause });
            let full = full(Bound::MaxWait, Some(retry_after));
            QueueFull { pause, ..full }.to_string()
        };
        let status = StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(
            text(7_190, PauseCause::Refusal(status), 7_188_000),
            "the upstream refuses calls for 1h 59m 50s more (429); the call may wait 2s; try again \
                in 1h 59m 48s"
        );
        assert_eq!(
            text(2_400, PauseCause::NothingLeft, 2_398_500),
            "nothing is left of the upstream's quota for 40m; the call may wait 2s; try again in \
                39m 59s"
        );
        assert_eq!(
            text(12, PauseCause::Program, 10_000),
            "paused by the program for 12s more; the call may wait 2s; try again in 10s"
        );
        assert_eq!(
            text(60, PauseCause::Fleet, 500),
            "paused by the fleet for 1m more; the call may wait 2s; try again in 500ms"
        );
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
        assert_eq!(widened.retry_after(), Some(Duration::from_millis(7)));
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
                let cause = response.extensions().get::<QueueFull>();
                assert_eq!(cause, Some(&full(bound, retry_after)));
            }
        }
    }
}
