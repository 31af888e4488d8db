use std::fmt;
use std::time::Duration;

use http::StatusCode;
use throttle_core::Policy;

/// What the rules in force would do with a request: see
/// [`Handle::explain`](crate::Handle::explain).
///
/// Its `Display` is text for a terminal, a line for each limit.
///
/// ```
/// use std::time::Duration;
///
/// use http::Request;
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{Registry, Rules, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = r#"
/// version = 1
/// [[limit]]
/// name = "all"
/// by = "constant"
/// fixed-window = { rate = "60/minute" }
/// "#;
/// let rules = Rules::from_str("throttle.toml", text, Registry::new())?;
/// let (_throttle, handle) = rules.layer(MemoryBackend::new())?;
/// let (head, ()) = Request::get("/").body(())?.into_parts();
/// let explanation = handle.explain(&head).await?;
/// assert!(explanation.is_admitted);
/// let all = &explanation.limits[0];
/// assert_eq!((all.name.as_str(), &all.verdict), ("all", &Verdict::Admits));
/// let left = all.left.expect("the limit applies");
/// assert_eq!((left.units, left.retry_after), (60, Some(Duration::ZERO)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Whether the request would be admitted now.
    pub is_admitted: bool,
    /// Whether the request would be held and then admitted, after
    /// [`retry_after`](Self::retry_after): all limits that refuse it have a `wait-up-to` of at
    /// least that time. Requests that are held already would be admitted before it, which is not
    /// counted.
    pub is_held: bool,
    /// After which time it would be admitted, if no other request comes: the longest of [its
    /// limits](KeyBalance::retry_after), and of an `any` the shortest. Zero if it is admitted.
    /// `None` if it never is, or if that depends on requests in flight.
    pub retry_after: Option<Duration>,
    /// Why the layer does not apply to the request, so that none of its limits does; `None` if it
    /// applies.
    pub layer_skips: Option<String>,
    /// What each limit would do: first the limits on rates, then those on requests in flight, in
    /// the order in which they are composed.
    pub limits: Vec<ExplainedLimit>,
}

/// What one limit would do with a request. See [`Explanation`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedLimit {
    /// Its name.
    pub name: String,
    /// What its key is made of: `by`, as the file says it, in TOML.
    pub by: String,
    /// The name of the request's class, if the limit has [classes](throttle_tower::Limit::priority) and
    /// decides by what is left.
    pub class: Option<String>,
    /// What it would do.
    pub verdict: Verdict,
    /// What is left for the request's key; `None` unless the limit admits, holds or refuses by what
    /// is left.
    pub left: Option<KeyBalance>,
}

/// What a limit does with a request. See [`Explanation`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Enough is left.
    Admits,
    /// Too little is left now, but enough in time: the limit holds the request, if no other limit
    /// refuses it.
    Holds,
    /// Too little is left.
    Refuses,
    /// Too little is left, and the limit is [audited](throttle_tower::Limit::audit): it refuses no
    /// request.
    WouldRefuse,
    /// The request has no key, which the limit answers with this status.
    RefusesWithoutKey(StatusCode),
    /// It does not apply, for this reason.
    Skips(String),
}

/// What is left of a limit for one key. See [`Explanation`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyBalance {
    /// Units that the request would use: its estimate, if the handler settles it.
    pub cost: u64,
    /// Whether the request has a key of its own. Without one it shares a budget with all others
    /// that have none.
    pub has_key: bool,
    /// The number of its tier, from 0, in the file's order; 0 for a limit without plans;
    /// [`Policy::OWN`] for parameters of its own.
    pub tier: u8,
    /// Whether an [exception](throttle_core::backend::Exception) of the key decides.
    pub is_excepted: bool,
    /// Units that must stay free for the classes above the request's; 0 for the highest, and
    /// without classes.
    pub reserve: u64,
    /// Units that are left for the request now: those beyond the reserve.
    pub units: u64,
    /// Units that an unused key has: by the limit itself, also where an exception decides.
    pub of: u64,
    /// After which time the limit would admit the request, if no other comes. Zero if it admits it.
    /// `None` if the request costs more than an unused key has beyond the reserve, or if requests
    /// in flight must end first.
    pub retry_after: Option<Duration>,
    /// When all of them are left again, if no request comes. Zero for requests in flight.
    pub resets_in: Duration,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_admitted, self.is_held) {
            (true, _) => "admitted",
            (false, true) => "held",
            (false, false) => "refused",
        })?;
        if let Some(wait) = self.retry_after.filter(|wait| !wait.is_zero()) {
            write!(f, ", admitted in {wait:?}")?;
        }
        if let Some(why) = &self.layer_skips {
            write!(f, ": the layer does not apply: {why}")?;
        }
        self.limits
            .iter()
            .try_for_each(|limit| write!(f, "\n{limit}"))
    }
}

impl fmt::Display for ExplainedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            by,
            class,
            verdict,
            left,
        } = self;
        write!(f, "limit {name:?} by {by}: {verdict}")?;
        let Some(KeyBalance {
            cost,
            has_key,
            tier,
            is_excepted,
            reserve,
            units,
            of,
            retry_after,
            resets_in,
        }) = left
        else {
            return Ok(());
        };
        write!(f, ": {units} of {of} left, costs {cost}")?;
        if let Some(class) = class {
            write!(f, ", class {class:?}, which leaves {reserve} free")?;
        }
        match *tier {
            0 => {}
            Policy::OWN => f.write_str(", its own parameters")?,
            tier => write!(f, ", tier {tier}")?,
        }
        if *is_excepted {
            f.write_str(", by an exception")?;
        }
        if !has_key {
            f.write_str(", shared by all requests without a key")?;
        }
        match retry_after {
            Some(wait) if !wait.is_zero() => write!(f, ", admits it in {wait:?}")?,
            None if *is_excepted => f.write_str(", not known when it admits it")?,
            None if cost.saturating_add(*reserve) > *of => f.write_str(", never admits it")?,
            _ => {}
        }
        if !resets_in.is_zero() {
            write!(f, ", all left again in {resets_in:?}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admits => f.write_str("admits"),
            Self::Holds => f.write_str("holds"),
            Self::Refuses => f.write_str("refuses"),
            Self::WouldRefuse => f.write_str("would refuse, but is audited"),
            Self::RefusesWithoutKey(status) => {
                write!(f, "refuses with {status}, because the request has no key")
            }
            Self::Skips(reason) => write!(f, "does not apply: {reason}"),
        }
    }
}
