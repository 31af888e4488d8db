mod draft11;
mod older_drafts;
mod openai;
mod x_ratelimit;

use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::header::RETRY_AFTER;
use throttle_core::ConfigError;

use super::form::DialectForm;

/// The headers in which a response states its limits, and their syntax.
///
/// A dialect has a word in text, such as the `headers` of a rule file. The word is what
/// [`as_str`](Self::as_str) and `Display` return, and what `FromStr` reads.
///
/// ```
/// use throttle_tower::{ClientIp, Dialect, Gcra, Rate, ThrottleLayer, limit};
///
/// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
/// let throttle = ThrottleLayer::builder(per_ip).headers("draft-07".parse()?).build()?;
/// assert_eq!("draft-07".parse::<Dialect>()?, Dialect::Draft07);
/// assert_eq!(Dialect::default().to_string(), "draft-11");
///
/// let error = "draft-7".parse::<Dialect>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "dialect is \"draft-7\": it must be one of draft-11, draft-07, draft-06, draft-03, \
///      x-ratelimit, x-ratelimit-epoch, openai, none"
/// );
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` as lists of named policies: the syntax of the IETF drafts
    /// -08 to -11.
    ///
    /// The only dialect that states of several policies what is left.
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

/// The meaning of the number in `X-RateLimit-Reset`. No standard defines it, so choose the one that
/// your clients expect.
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
    /// All dialects, the default first.
    ///
    /// ```
    /// use throttle_tower::Dialect;
    ///
    /// for dialect in Dialect::ALL {
    ///     assert_eq!(dialect.as_str().parse(), Ok(*dialect));
    /// }
    /// assert_eq!(Dialect::ALL[0], Dialect::default());
    /// ```
    pub const ALL: &'static [Self] = &[
        Self::Draft11,
        Self::Draft07,
        Self::Draft06,
        Self::Draft03,
        Self::XRateLimit(ResetFormat::DeltaSeconds),
        Self::XRateLimit(ResetFormat::EpochSeconds),
        Self::OpenAi,
        Self::None,
    ];

    /// The word of the dialect in text, such as `"draft-11"`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.form().word
    }

    /// The headers that a page of another origin may read only if the response exposes them.
    ///
    /// Without that, the page can read only a few basic headers. List these in
    /// `Access-Control-Expose-Headers`, and add the CORS layer *outside* the limiter. Inside it, a
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

    pub(crate) fn form(self) -> &'static DialectForm {
        match self {
            Self::Draft11 => &draft11::DRAFT11,
            Self::Draft07 => &older_drafts::DRAFT07,
            Self::Draft06 => &older_drafts::DRAFT06,
            Self::Draft03 => &older_drafts::DRAFT03,
            Self::XRateLimit(ResetFormat::DeltaSeconds) => &x_ratelimit::SECONDS,
            Self::XRateLimit(ResetFormat::EpochSeconds) => &x_ratelimit::EPOCH,
            Self::OpenAi => &openai::OPENAI,
            Self::None => &NONE,
        }
    }
}

static NONE: DialectForm = DialectForm {
    word: "none",
    exposed: &[RETRY_AFTER],
    schemas: &[],
    policies: |_| None,
    write: |_, _, _| {},
    states_instants: false,
};

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Dialect {
    type Err = ConfigError;

    /// # Errors
    ///
    /// If the text is not the word of a dialect. Case and spaces count.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let dialect = Self::ALL.iter().find(|dialect| dialect.as_str() == text);
        dialect.copied().ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|dialect| dialect.as_str()).collect();
            let rule = format!("it must be one of {}", words.join(", "));
            ConfigError::new("dialect", format_args!("{text:?}"), rule)
        })
    }
}
