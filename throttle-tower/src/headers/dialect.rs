use http::HeaderName;

use super::form::Form;
use super::{draft11, legacy, names, openai};

/// The headers in which a response states its limits, and their syntax.
///
/// ```
/// use throttle_tower::{ClientIp, Dialect, Gcra, Rate, ThrottleLayer, limit};
///
/// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
/// let throttle = ThrottleLayer::new(per_ip)?.headers(Dialect::Draft07);
/// assert_eq!(Dialect::default(), Dialect::Draft11);
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` as lists of named policies: the syntax of the IETF drafts
    /// -08 to -11.
    ///
    /// The only dialect that describes several policies at once.
    #[default]
    Draft11,
    /// `RateLimit: limit=10, remaining=7, reset=1`, and `RateLimit-Policy` as a list of quotas.
    Draft07,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, and `RateLimit-Policy` as a list of quotas.
    Draft06,
    /// `RateLimit-Limit: 10, 10;w=1`, `RateLimit-Remaining` and `RateLimit-Reset`.
    Draft03,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, which no standard or draft defines. They
    /// have no window, so the limit is the most that can remain: the burst, or the count of a
    /// window.
    XRateLimit(ResetFormat),
    /// `x-ratelimit-limit-requests`, `-remaining-requests` and `-reset-requests`, and the same of
    /// `-tokens`, as OpenAI's API sends them.
    ///
    /// Policies of the [unit](crate::Limit::unit) `"tokens"` are described by the latter, policies
    /// without a unit by the former, and policies of other units not at all. Of several policies of
    /// one unit, the one that leaves the client least is described; of those that refuse, the one
    /// with the longest wait. The reset is a duration as Go writes it, such as `17ms`, `1.5s` or
    /// `6m0s`, rounded up to milliseconds: when the client has its whole quota again. The limit is
    /// the most that can remain.
    OpenAi,
    /// No headers about limits. A refusal still carries `Retry-After`, which belongs to HTTP
    /// itself.
    None,
}

/// What the number in `X-RateLimit-Reset` counts. No standard defines it, so choose what your
/// clients expect.
///
/// ```
/// use throttle_tower::Dialect;
/// use throttle_tower::headers::ResetFormat;
///
/// assert_eq!(ResetFormat::default(), ResetFormat::DeltaSeconds);
/// let like_github = Dialect::XRateLimit(ResetFormat::EpochSeconds);
/// assert!(like_github.exposed_names().iter().any(|name| name == "x-ratelimit-reset"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds from now. Correct whatever the client's clock says.
    #[default]
    DeltaSeconds,
    /// Seconds since the Unix epoch, as GitHub sends. The client's clock may differ from the
    /// server's, and the wait is then wrong by the difference.
    EpochSeconds,
}

impl Dialect {
    /// The headers that a page of another origin may read only if the response exposes them.
    ///
    /// Otherwise such a page can read only a few basic headers. List these in
    /// `Access-Control-Expose-Headers`, and place the CORS layer *outside* the limiter, or a
    /// refusal reaches the page as an unexplained network error. (`*` in that header does not cover
    /// requests with credentials.)
    ///
    /// ```
    /// use throttle_tower::headers::Dialect;
    ///
    /// let names: Vec<&str> = Dialect::Draft11
    ///     .exposed_names()
    ///     .iter()
    ///     .map(|name| name.as_str())
    ///     .collect();
    /// assert_eq!(names, ["ratelimit", "ratelimit-policy", "retry-after"]);
    /// ```
    #[must_use]
    pub fn exposed_names(self) -> &'static [HeaderName] {
        self.form().exposed
    }

    pub(crate) fn form(self) -> &'static Form {
        match self {
            Self::Draft11 => &draft11::DRAFT11,
            Self::Draft07 => &legacy::DRAFT07,
            Self::Draft06 => &legacy::DRAFT06,
            Self::Draft03 => &legacy::DRAFT03,
            Self::XRateLimit(ResetFormat::DeltaSeconds) => &legacy::X_SECONDS,
            Self::XRateLimit(ResetFormat::EpochSeconds) => &legacy::X_EPOCH,
            Self::OpenAi => &openai::OPENAI,
            Self::None => &NONE,
        }
    }
}

static NONE: Form = Form {
    policies: |_| None,
    write: |_, _, _| {},
    exposed: &names::NONE,
    states_instants: false,
};
