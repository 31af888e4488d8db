//! Bans: what counts as a strike, and whose keys may be banned. `throttle/steps/strike` counts.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use throttle_core::ConfigError;
use throttle_core::backend::Ban;

use super::settings::LimitSettings;
use super::single::Limit;
use crate::extract::KeyExtractor;

/// # Bans
///
/// A banned key is refused by this limit until the ban ends, whatever else it has left. Its
/// `Retry-After` says so, and refusals of a banned key are no strikes. A ban is found where the
/// key's state is, in the same step as the decision, and holds in all processes that share the
/// store. A key without strikes costs nothing more.
///
/// A request that costs nothing is not refused, by a ban either.
///
/// A strike is counted after the refusal or the response: immediately in memory, in the background
/// over a store. Requests that are decided before that are not yet refused by the ban. Strikes are
/// made by the limit that refuses, not by others of the layer. One that fails is lost, and counted
/// among the failed [settlements](crate::ThrottleLayer::settlements). While the store fails, the
/// [share](crate::OnError::Local) of this process counts strikes and bans by itself, and the store
/// does not learn of them; limits that are open or closed then count none. Under an
/// [exception](throttle_core::backend::Exception) that an operator has set, no strikes are counted;
/// lifting it, or resetting the key, pardons.
///
/// Everybody behind a key is banned together: a household, an office or a mobile network behind an
/// address, and all requests without a key, unless [`on_missing`](Self::on_missing) skips or
/// rejects them.
impl Limit {
    /// Bans keys that do not stop: see [`Ban`]. A strike is a refusal by this limit, or a response
    /// for which [`strike_if`](Self::strike_if) returns true. Defaults to no bans.
    ///
    /// Building the layer fails if a number of the ban is out of its bounds, if the limit is in an
    /// [`any`](crate::any), if the backend [cannot ban](throttle_core::Backend::has_exceptions), or
    /// if one client could ban another: where the key is a header that [nothing
    /// checks](crate::Header::accept), an address from a header that is read [whoever the peer
    /// is](crate::TrustedProxies::danger_any_width), or is shared by clients, as
    /// [`Constant`](crate::Constant) is. [`Ban::even_if_spoofable`] allows that. Keys of functions,
    /// futures and extensions are not checked.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::limit::Ban;
    /// use throttle_tower::{ClientIp, Header, SlidingLog, ThrottleLayer, limit};
    ///
    /// let login = || limit("login", SlidingLog::new("5/15m".parse().unwrap()));
    /// let ban = Ban::after(5)
    ///     .lasting(Duration::from_secs(600))
    ///     .growing(2)
    ///     .up_to(Duration::from_secs(86_400));
    /// let by_peer = login()
    ///     .by(ClientIp::peer())
    ///     .ban(ban)
    ///     .strike_if(|status, _| status == 401);
    /// assert!(ThrottleLayer::new(by_peer).is_ok());
    /// let by_name = login().by(Header::new("x-user")).ban(ban);
    /// assert!(
    ///     ThrottleLayer::new(by_name).is_err(),
    ///     "anybody could ban anybody"
    /// );
    /// ```
    pub fn ban(mut self, ban: Ban) -> Self {
        self.applied.charge_rules.used().ban = Some(ban);
        self
    }

    /// Counts a strike for each admitted request for whose response `strikes` returns true, beside
    /// the refusals. Called several times, each of the rules counts. Needs a [`ban`](Self::ban).
    /// Defaults to never.
    pub fn strike_if(
        mut self,
        strikes: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        let rules = self.applied.charge_rules.used();
        rules.strike_if = Some(match rules.strike_if.take() {
            None => Arc::new(strikes),
            Some(other) => {
                Arc::new(move |status, headers| other(status, headers) || strikes(status, headers))
            }
        });
        self
    }
}

impl LimitSettings {
    /// # Errors
    ///
    /// If the ban cannot be, or could be used by one client against another.
    pub(super) fn check_ban(&self) -> Result<(), ConfigError> {
        let rules = &self.charge_rules;
        let Some(ban) = rules.ban else {
            let rule = "strikes count toward a ban; add one: .ban(Ban::after(5)), in a file ban = \
                { after = 5 }";
            return rules.strike_if.as_ref().map_or(Ok(()), |_| {
                Err(ConfigError::new("strike_if", "without a ban", rule))
            });
        };
        ban.check()?;
        let key_source = &self.key_source;
        if ban.is_even_if_spoofable()
            || !key_source
                .extractor()
                .is_some_and(KeyExtractor::is_spoofable)
        {
            return Ok(());
        }
        let rule = "one client could send requests with the key of another, and ban it; limit by \
            what clients cannot choose, such as ClientIp::peer(), or insist with \
            Ban::even_if_spoofable, in a file even-if-spoofable = true";
        Err(ConfigError::new(
            "ban",
            format_args!("by {}", key_source.describe()),
            rule,
        ))
    }
}

#[cfg(test)]
mod tests;
