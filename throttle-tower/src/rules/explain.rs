use std::fmt;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use throttle_core::{BackendError, Policy};

use super::Rules;
use super::handle::Handle;
use crate::limit::{Asks, Explained, ExplainedLimit as Found, Left};

/// What the rules in force would do with a request: see [`Handle::explain`].
///
/// Its `Display` is text for a terminal, a line for each limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Whether the request would be admitted now.
    pub is_admitted: bool,
    /// Whether the request would be held and then admitted, after [`retry_after`](Self::retry_after): all limits that
    /// refuse it have a `wait-up-to` of at least that time. Requests that are held already come before it.
    pub is_held: bool,
    /// After which time it would be admitted, if no other request comes: the longest of [its
    /// limits](KeyLeft::retry_after), and of an `any` the shortest. Zero if it is admitted. `None` if it never is, or
    /// if that depends on requests in flight.
    pub retry_after: Option<Duration>,
    /// Why the layer does not apply to the request, so that none of its limits does; `None` if it applies.
    pub layer_skips: Option<String>,
    /// What each limit would do: first the limits on rates, then those on requests in flight, in the order in which
    /// they are composed.
    pub limits: Vec<ExplainedLimit>,
}

/// What one limit would do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedLimit {
    /// Its name.
    pub name: String,
    /// What its key is made of: `by`, as the file says it, in TOML.
    pub by: String,
    /// What it would do.
    pub verdict: Verdict,
    /// What is left for the request's key; `None` unless the limit admits, holds or refuses by what is left.
    pub left: Option<KeyLeft>,
}

/// What a limit does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Enough is left.
    Admits,
    /// Too little is left now, but enough in time: the limit holds the request, if no other limit refuses it.
    Holds,
    /// Too little is left.
    Refuses,
    /// The request has no key, which the limit answers with this status.
    RefusesWithoutKey(StatusCode),
    /// It does not apply, for this reason.
    Skips(String),
}

/// What is left of a limit for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyLeft {
    /// Units that the request would use: its estimate, if the handler settles it.
    pub cost: u64,
    /// Whether the request has a key of its own. Without one it shares a budget with all others that have none.
    pub has_key: bool,
    /// The number of its tier, from 0, in the file's order; 0 for a limit without plans; [`Policy::OWN`] for parameters
    /// of its own.
    pub tier: u8,
    /// Units that are left now.
    pub units: u64,
    /// Units that an unused key has.
    pub of: u64,
    /// After which time the limit would admit the request, if no other comes. Zero if it admits it. `None` if the
    /// request costs more than an unused key has, or if requests in flight must end first.
    ///
    /// For a request that costs one unit it is exact. For larger costs it is exact to a microsecond where units come
    /// back evenly (`gcra`, `token-bucket`, `leaky-meter`) or all at once (`fixed-window`, `calendar-quota`); for other
    /// algorithms it is when all units are left again, and the request may be admitted earlier. After a change of the
    /// file or of the client's tier, it is an estimate for larger costs until the limit admits a request.
    pub retry_after: Option<Duration>,
    /// When all of them are left again, if no request comes. Zero for requests in flight.
    pub resets_in: Duration,
}

impl Handle {
    /// Tells what would happen to a request with this head, and charges nothing: which limits apply and why the others
    /// do not, what is left for its keys, and when a request that is refused would be admitted. The decision that
    /// follows is the same, if no other request comes between.
    ///
    /// Keys and costs of the program are called as for a request, lookups of plans too. A store is asked once, within
    /// its deadline. Of several layers with these rules, the one that was made last is asked, of those that are left.
    ///
    /// The head must have what the limits read: a route as axum's `MatchedPath`, a peer address as
    /// [`PeerAddr`](crate::extract::PeerAddr) or axum's `ConnectInfo`.
    ///
    /// ```
    /// use http::Request;
    /// use throttle_tower::MemoryBackend;
    /// use throttle_tower::rules::{Registry, Rules, Verdict};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = r#"
    /// version = 1
    /// [[limit]]
    /// name = "all"
    /// by = "constant"
    /// fixed-window = { rate = "60/minute" }
    /// [[limit]]
    /// name = "login"
    /// by = "constant"
    /// sliding-log = { rate = "5/15m" }
    /// match = { methods = ["POST"], paths = ["/login"] }
    /// "#;
    /// let (throttle, handle) = Rules::from_str("throttle.toml", text, Registry::new())?.layer(MemoryBackend::new())?;
    /// let (head, ()) = Request::get("/login").body(())?.into_parts();
    /// let explained = handle.explain(&head).await?;
    /// assert!(explained.is_admitted);
    /// assert_eq!(explained.limits[0].left.unwrap().units, 60);
    /// assert_eq!(explained.limits[1].verdict, Verdict::Skips("its method is not among match.methods".to_owned()));
    /// # let _ = throttle;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store fails.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: it changes nothing.
    pub async fn explain(&self, parts: &Parts) -> Result<Explanation, BackendError> {
        let rules = self.rules();
        let Some(layer) = self.layer() else {
            let why = "there is no layer of these rules any more";
            let (retry_after, layer_skips) = (Some(Duration::ZERO), Some(why.to_owned()));
            let limits = Vec::new();
            return Ok(Explanation { is_admitted: true, is_held: false, retry_after, layer_skips, limits });
        };
        let explained = layer.explain(parts).await?;
        let Explained { limits, is_admitted, is_held, retry_after, layer_skips } = explained;
        let applies = layer_skips.is_none();
        let limits = limits.into_iter().map(|found| rules.explained(found, applies, parts)).collect();
        Ok(Explanation { is_admitted, is_held, retry_after, layer_skips, limits })
    }

    /// Makes the key that a request with this head has in a limit unused. `Ok(false)` if the file has no limit on a
    /// rate of that name, if the limit or the whole layer does not apply to the request, or if no layer is left.
    ///
    /// # Errors
    ///
    /// If the store fails. The key may then be unused, or not.
    pub async fn reset(&self, limit: &str, parts: &Parts) -> Result<bool, BackendError> {
        match self.layer() {
            Some(layer) => layer.reset(limit, parts).await,
            None => Ok(false),
        }
    }
}

impl Rules {
    fn explained(&self, found: Found, layer_applies: bool, parts: &Parts) -> ExplainedLimit {
        let Found { name, asks, left } = found;
        let limit = self.document.limits.iter().find(|limit| limit.name == name.as_str());
        let by = limit.map(|limit| limit.by.clone()).unwrap_or_default();
        let mismatch = || match layer_applies {
            true => limit.and_then(|limit| limit.matcher.mismatch(parts)),
            false => Some("the layer does not apply".to_owned()),
        };
        let (verdict, left) = match (asks, left) {
            (Asks::Units { cost, has_key, tier }, Some(Left { units, of, retry_after, is_held, resets_in })) => {
                let verdict = match is_held {
                    _ if cost <= units => Verdict::Admits,
                    true => Verdict::Holds,
                    false => Verdict::Refuses,
                };
                (verdict, Some(KeyLeft { cost, has_key, tier, units, of, retry_after, resets_in }))
            }
            (Asks::RefusedWithoutKey(status), _) => (Verdict::RefusesWithoutKey(status), None),
            (Asks::SkippedWithoutKey, _) => {
                (Verdict::Skips("it has no key, and on-missing is \"skip\"".to_owned()), None)
            }
            (Asks::Nothing | Asks::Units { .. }, _) => {
                (Verdict::Skips(mismatch().unwrap_or_else(|| "it does not apply".to_owned())), None)
            }
        };
        ExplainedLimit { name: name.as_str().to_owned(), by, verdict, left }
    }
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
        self.limits.iter().try_for_each(|limit| write!(f, "\n{limit}"))
    }
}

impl fmt::Display for ExplainedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, by, verdict, left } = self;
        write!(f, "limit {name:?} by {by}: {verdict}")?;
        let Some(KeyLeft { cost, has_key, tier, units, of, retry_after, resets_in }) = left else { return Ok(()) };
        write!(f, ": {units} of {of} left, costs {cost}")?;
        match *tier {
            0 => {}
            Policy::OWN => f.write_str(", its own parameters")?,
            tier => write!(f, ", tier {tier}")?,
        }
        if !has_key {
            f.write_str(", shared by all requests without a key")?;
        }
        match retry_after {
            Some(wait) if !wait.is_zero() => write!(f, ", admits it in {wait:?}")?,
            None if cost > of => f.write_str(", never admits it")?,
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
            Self::RefusesWithoutKey(status) => write!(f, "refuses with {status}, because the request has no key"),
            Self::Skips(reason) => write!(f, "does not apply: {reason}"),
        }
    }
}
