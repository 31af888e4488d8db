//! Limits: a policy, the key it is applied by, what a request costs, when it applies; and how
//! several are composed.
//!
//! [`limit()`] starts a limit, [`Limit`] has its options, and [`all`] and [`any`] compose limits.
//! A limit on requests in flight is one of the kind [`InFlight`]. [`Ban`] says how long keys are
//! refused that do not stop.

// `single` and `refunds_and_charges` hold the options of one limit: each has its type and its checks
// in a file of its name, and a field in `settings`, which all parts of a layer read. `compile`
// splits a composition into the two halves that a layer runs. What a layer does with a request is
// in `throttle`.

// Before the others that add methods to a limit: docs list methods in the order of modules.
mod single;

mod audit;
mod ban;
mod charge_rules;
mod compile;
mod compose;
mod condition;
mod cost;
mod key_source;
mod kind;
mod on_error;
mod on_missing;
mod priority;
mod refunds_and_charges;
mod select;
mod settings;
mod warn_at;

use http::request::Parts;
use throttle_core::{Algorithm, ConfigError};

pub use audit::Audit;
pub(crate) use charge_rules::ChargeRules;
pub use charge_rules::{failed, server_error, successful};
pub(crate) use compile::{CompiledLimits, PermitLimit, PermitSet, PermitTree};
pub use compose::{IntoLimitTree, IntoMembers, LimitTree, all, any};
pub(crate) use condition::Condition;
pub use cost::IntoCost;
pub(crate) use key_source::{
    FoundKey, FoundTier, KeySource, LookedUp, LookupReport, LookupResult, TierLookup,
};
pub use kind::{InFlight, LimitKind, Rated};
pub use on_error::OnError;
pub use on_missing::OnMissing;
pub(crate) use priority::check_classes;
pub use select::Select;
pub(crate) use select::{SelectedLimits, Selection, select};
pub(crate) use settings::LimitSettings;
pub use single::{Limit, Unkeyed, limit};
pub use throttle_core::backend::Ban;
pub(crate) use warn_at::WarnAt;

/// Whether a request is a CORS preflight: OPTIONS with `Origin` and
/// `Access-Control-Request-Method`.
///
/// A browser sends preflights by itself. Put the CORS layer outside the throttle, so that it
/// answers them and adds its headers to refusals. Or exempt them with
/// `.when(|parts: &Parts| !is_preflight(parts))`, and add a separate limit for them.
///
/// ```
/// use http::Request;
/// use throttle_tower::is_preflight;
///
/// let request = Request::options("/orders").header("origin", "https://example.com");
/// let (plain, _) = request.body(())?.into_parts();
/// assert!(!is_preflight(&plain));
/// let request = Request::options("/orders").header("origin", "https://example.com");
/// let (preflight, _) = request
///     .header("access-control-request-method", "PUT")
///     .body(())?
///     .into_parts();
/// assert!(is_preflight(&preflight));
/// # Ok::<(), http::Error>(())
/// ```
#[must_use]
pub fn is_preflight(parts: &Parts) -> bool {
    parts.method == http::Method::OPTIONS
        && parts.headers.contains_key(http::header::ORIGIN)
        && parts
            .headers
            .contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// # Errors
///
/// If the algorithm delays requests: a throttle admits or refuses them.
pub(crate) fn check_refuses(algorithm: &Algorithm) -> Result<(), ConfigError> {
    if algorithm.delays() {
        let rule = "it delays, and a throttle refuses; use LeakyMeter or Gcra here";
        return Err(ConfigError::new("algorithm", algorithm.name(), rule));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn preflight_has_the_method_and_both_headers() {
        let is = |method: &str, origin, asks_for_method| {
            let mut request = Request::builder().method(method);
            if origin {
                request = request.header("origin", "https://example.com");
            }
            if asks_for_method {
                request = request.header("access-control-request-method", "PUT");
            }
            is_preflight(&request.body(()).unwrap().into_parts().0)
        };
        assert!(is("OPTIONS", true, true));
        assert!(
            !is("PUT", true, true) && !is("OPTIONS", false, true) && !is("OPTIONS", true, false)
        );
    }
}
