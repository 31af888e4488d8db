use http::HeaderName;

use super::names;

/// The words in which a response speaks of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` as lists of named policies: the syntax of the IETF drafts -08 to -11.
    ///
    /// The only dialect that can speak of several policies at once.
    #[default]
    Draft11,
    /// `RateLimit: limit=10, remaining=7, reset=1`, and `RateLimit-Policy` as a list of quotas.
    Draft07,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, and `RateLimit-Policy` as a list of quotas.
    Draft06,
    /// `RateLimit-Limit: 10, 10;w=1`, `RateLimit-Remaining` and `RateLimit-Reset`.
    Draft03,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, which no document defines.
    XRateLimit(ResetFormat),
    /// No fields about limits. A refusal still carries `Retry-After`, which belongs to HTTP itself.
    None,
}

/// What the number in `X-RateLimit-Reset` counts. Clients guess, so choose what yours expect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds from now. Right whatever the client's clock says.
    #[default]
    DeltaSeconds,
    /// Seconds since the Unix epoch, as GitHub sends. Wrong by as much as the two clocks differ.
    EpochSeconds,
}

impl Dialect {
    /// The fields that a browser must be told to show to a page of another origin.
    ///
    /// Of all response fields such a page reads only a few basic ones; put these into `Access-Control-Expose-Headers`
    /// and place the CORS layer *outside* the limiter, or a refusal reaches the page as an unexplained network error.
    /// (`*` in that field does not cover requests with credentials.)
    ///
    /// ```
    /// use throttle_tower::headers::Dialect;
    ///
    /// let names: Vec<&str> = Dialect::Draft11.exposed_names().iter().map(|name| name.as_str()).collect();
    /// assert_eq!(names, ["ratelimit", "ratelimit-policy", "retry-after"]);
    /// ```
    #[must_use]
    pub fn exposed_names(self) -> &'static [HeaderName] {
        match self {
            Self::Draft11 | Self::Draft07 => &names::EXPOSED_LISTS,
            Self::Draft06 => &names::EXPOSED_DRAFT06,
            Self::Draft03 => &names::EXPOSED_DRAFT03,
            Self::XRateLimit(_) => &names::EXPOSED_X,
            Self::None => &names::EXPOSED_NONE,
        }
    }
}
