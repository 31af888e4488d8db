use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use http::request::Parts;
use throttle_core::Call;

use crate::Route;
use crate::limit::Applied;

/// A configuration that works, but hardly as it was meant: see [`ThrottleLayer::on_warning`](crate::ThrottleLayer::on_warning).
/// Its `Display` is a sentence for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Warning {
    /// A limit by [`Route`] found no route for a request that was then answered with success. The layer stands outside
    /// the router, or the answer came from a fallback: all such requests share one budget.
    RouteUnknown,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RouteUnknown => {
                "a limit by Route found no route for a request that succeeded, so such requests share one budget; add the \
                 layer with Router::layer or route_layer rather than around the router"
            }
        })
    }
}

/// Waits for the first occasion to warn.
#[derive(Clone)]
pub(crate) struct Watch {
    hook: Arc<dyn Fn(&Warning) + Send + Sync>,
    warned: Arc<AtomicBool>,
}

impl Watch {
    pub(super) fn new(hook: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        Self { hook: Arc::new(hook), warned: Arc::new(AtomicBool::new(false)) }
    }

    /// Whether a limit by route applies to the request and its route is not known.
    pub(super) fn suspects(&self, applied: &[Applied], calls: &[Call], parts: &Parts) -> bool {
        !self.warned.load(Ordering::Relaxed)
            && Route::template(parts).is_none()
            && applied.iter().zip(calls).any(|(how, call)| how.by_route && call.key().is_some())
    }

    /// Warns, unless it was done before or a request without a route was not served anyway.
    pub(super) fn confirm(&self, status: StatusCode) {
        if status.is_success() && !self.warned.swap(true, Ordering::Relaxed) {
            (self.hook)(&Warning::RouteUnknown);
        }
    }
}
