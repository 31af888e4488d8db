//! What a peek has found of each limit, in addition to the decision.

use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;
use throttle_core::Key;
use throttle_core::backend::Call;

use crate::event::LimitState;

/// What a peek has found of a request.
pub(super) struct PeekStates {
    /// One for each limit on a rate.
    pub(super) calls: SmallVec<[Call; 3]>,
    /// Why a limit was not peeked at; `None` for those that were.
    pub(super) absences: Vec<Option<Absence>>,
    /// One for each limit on requests in flight, by its index in the layer.
    pub(super) permits: Vec<(usize, PermitState)>,
    /// Whether there are enough permits, and no required key is missing.
    pub(super) may_pass: bool,
    /// How long the layer would hold the request.
    pub(super) held_for: Option<Duration>,
}

/// Why a limit is not peeked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    NoKey(Option<StatusCode>),
    DoesNotApply,
}

/// A limit on requests in flight.
pub(super) enum PermitState {
    Absent(Absence),
    Counted {
        key: Key,
        needed: u64,
        free: u64,
        most: u64,
    },
}

impl From<Absence> for LimitState<'_> {
    fn from(absence: Absence) -> Self {
        match absence {
            Absence::NoKey(status) => Self::NoKey(status),
            Absence::DoesNotApply => Self::DoesNotApply,
        }
    }
}

impl PermitState {
    pub(super) fn shown(&self) -> LimitState<'_> {
        match self {
            Self::Absent(absence) => (*absence).into(),
            Self::Counted {
                key,
                needed,
                free,
                most,
            } => LimitState::Permits {
                needed: *needed,
                free: *free,
                most: *most,
                key,
            },
        }
    }
}
