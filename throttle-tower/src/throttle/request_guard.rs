use http::{HeaderMap, StatusCode};

use super::permit::Permit;
use crate::usage::{Open, Standings};

/// What a request holds until its response's body has ended. Nothing for most requests, so that is
/// small to carry along.
#[derive(Debug, Default)]
pub(crate) struct RequestGuard(Option<Box<GuardContent>>);

#[derive(Debug)]
struct GuardContent {
    /// The charges that may still change. Dropped first: the next request with the permit finds
    /// them settled.
    open: Option<Open>,
    permit: Option<Permit>,
    /// What the throttles around this one hold.
    outer: RequestGuard,
}

impl RequestGuard {
    pub(super) fn new(open: Option<Open>, permit: Option<Permit>) -> Self {
        Self(Some(Box::new(GuardContent {
            open,
            permit,
            outer: Self::default(),
        })))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// What this throttle holds, and what one around it holds. It ends from the inside outwards.
    pub(super) fn inside(self, outer: Self) -> Self {
        let Some(mut inner) = self.0 else {
            return outer;
        };
        inner.outer = std::mem::take(&mut inner.outer).inside(outer);
        Self(Some(inner))
    }

    /// Settles what the head of the response decides, and holds nothing if nothing is left to be
    /// held. Returns where the keys of changed charges stand.
    #[inline]
    pub(super) fn answered(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Box<Standings>> {
        let holding = self.0.as_mut()?;
        let (open, standings) = holding.open.take()?.answered(status, headers);
        if open.is_none() && holding.permit.is_none() {
            self.0 = None;
        } else {
            holding.open = open;
        }
        standings.map(Box::new)
    }
}
