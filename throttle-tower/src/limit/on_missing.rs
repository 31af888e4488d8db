use http::StatusCode;
use throttle_core::ConfigError;

/// What a limit does with a request that has no key.
///
/// ```
/// use http::StatusCode;
/// use throttle_tower::{Gcra, Header, OnMissing, Rate, ThrottleLayer, limit};
///
/// # fn is_issued(key: &[u8]) -> bool { key == b"ada" }
/// let per_key = |status| {
///     limit("per-key", Gcra::new(Rate::per_second(10)))
///         .by(Header::new("x-api-key").accept(is_issued)) // an invented key is none
///         .on_missing(OnMissing::Reject(status))
/// };
/// assert!(ThrottleLayer::new(per_key(StatusCode::UNAUTHORIZED)).is_ok());
/// assert!(
///     ThrottleLayer::new(per_key(StatusCode::OK)).is_err(),
///     "a refusal has a status of 400 or above"
/// );
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissing {
    /// All requests without a key share one budget.
    #[default]
    Share,
    /// The limit does not apply to requests without a key.
    Skip,
    /// Requests without a key are refused with this status before anything is decided. With a
    /// status below 400, building the layer fails.
    Reject(StatusCode),
}

impl OnMissing {
    /// # Errors
    ///
    /// If the status of a refusal is below 400.
    pub(super) fn check(self) -> Result<(), ConfigError> {
        match self {
            Self::Reject(status) if !(status.is_client_error() || status.is_server_error()) => {
                let rule = "a refusal must have a status of 400 or above";
                Err(ConfigError::new("on_missing", status, rule))
            }
            Self::Share | Self::Skip | Self::Reject(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_has_the_status_of_an_error() {
        let check = |status| {
            OnMissing::Reject(StatusCode::from_u16(status).unwrap())
                .check()
                .is_ok()
        };
        assert!([400, 401, 499, 500, 503, 599].into_iter().all(check));
        assert!(![100, 200, 304, 399, 600, 999].into_iter().any(check));
    }

    #[test]
    fn requests_without_a_key_share_a_budget_by_default() {
        assert_eq!(OnMissing::default(), OnMissing::Share);
        assert!(OnMissing::Share.check().is_ok() && OnMissing::Skip.check().is_ok());
        let error = OnMissing::Reject(StatusCode::NOT_MODIFIED)
            .check()
            .unwrap_err();
        let said = "on_missing is 304 Not Modified: a refusal must have a status of 400 or above";
        assert_eq!(error.to_string(), said);
    }
}
