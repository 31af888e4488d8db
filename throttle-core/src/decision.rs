use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Mark, NEVER, Outcome, Standing, Taken};
use crate::backend::{BackendErrorKind, Call};
use crate::decided_by::DecidedBy;
use crate::policy::Policy;
use crate::time::micros_ceil;

/// What a set of limits says about one request.
///
/// All times are relative to the instant of the decision, and exact to the microsecond: `retry_after` and `reset_after`
/// are the least that is true, rounded up; `remaining` is rounded down.
///
/// Decisions are equal when they say the same and were made on the same [`DecidedBy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision(Repr);

/// One policy is the usual case, and what it says is what the set says: telling it twice would cost more than deciding.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Repr {
    One { status: Status, delay: u64 },
    Many { summary: Summary, statuses: Statuses },
}

/// What a set says as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) wait: u64,
    pub(crate) remaining: u64,
    pub(crate) reset: u64,
    pub(crate) delay: u64,
    pub(crate) binding: Option<usize>,
}

/// Three limits a request is the common case; more are kept on the heap.
pub(crate) type Statuses = SmallVec<[Status; 3]>;

impl Decision {
    /// The decision of any set.
    #[inline]
    pub(crate) fn of_many(summary: Summary, statuses: Statuses) -> Self {
        match statuses.as_slice() {
            // The same decision is told in one way, so that backends can be compared.
            [status] if status.applies && summary.binding == Some(0) => {
                Self(Repr::One { status: *status, delay: summary.delay })
            }
            _ => Self(Repr::Many { summary, statuses }),
        }
    }

    /// The decision of one policy that applies.
    #[inline]
    pub(crate) fn of_one(outcome: Outcome, standing: Standing, tier: u8, overflow: bool) -> Self {
        let Outcome { wait, delay, taken } = outcome;
        let (violated, decided_by) = (wait > 0, DecidedBy::Store);
        let status = Status { standing, wait, applies: true, violated, overflow, decided_by, tier, taken };
        Self(Repr::One { status, delay })
    }

    /// Each policy's status and the longest delay, to be filled in.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut [Status], &mut u64) {
        match &mut self.0 {
            Repr::One { status, delay } => (std::slice::from_mut(status), delay),
            Repr::Many { summary, statuses } => (statuses, &mut summary.delay),
        }
    }

    /// Sums up the statuses of an `all` whose policies all apply. The first of equals binds.
    #[inline(always)]
    pub(crate) fn summarize(&mut self) {
        let Repr::Many { summary, statuses } = &mut self.0 else { return };
        let (mut longest, mut least) = (0, 0);
        for (n, status) in statuses.iter().enumerate() {
            if status.wait > summary.wait {
                (summary.wait, longest) = (status.wait, n);
            }
            if status.standing.remaining < summary.remaining {
                (summary.remaining, least) = (status.standing.remaining, n);
            }
            summary.reset = summary.reset.max(status.standing.reset);
        }
        summary.binding = Some(if summary.wait == 0 { least } else { longest });
    }

    #[inline]
    const fn wait(&self) -> u64 {
        match &self.0 {
            Repr::One { status, .. } => status.wait,
            Repr::Many { summary, .. } => summary.wait,
        }
    }

    /// The decision about a request to which none of a set's policies applies: allowed, nothing charged.
    #[must_use]
    pub fn not_limited(policies: usize) -> Self {
        let summary = Summary { wait: 0, remaining: u64::MAX, reset: 0, delay: 0, binding: None };
        Self(Repr::Many { summary, statuses: SmallVec::from_elem(Status::SKIPPED, policies) })
    }

    /// The decision about a request that the store could not decide about, and all of whose policies are open then:
    /// allowed, nothing charged. None of them [applies](Status::applies); those that would have are [`DecidedBy::Open`].
    #[must_use]
    pub fn open(calls: &[Call], why: BackendErrorKind) -> Self {
        let mut decision = Self::not_limited(calls.len());
        decision
            .set_decided_by(|place| if calls[place].key().is_some() { DecidedBy::Open(why) } else { DecidedBy::Store });
        decision
    }

    /// Says who decided about each policy, by its place in the set.
    pub(crate) fn set_decided_by(&mut self, decided_by: impl Fn(usize) -> DecidedBy) {
        self.parts().0.iter_mut().enumerate().for_each(|(place, status)| status.decided_by = decided_by(place));
    }

    /// Makes a look a refusal by the policy at a place in the set, because others who came before have a right to what is
    /// left: for layers that hold requests in line. Waiting so long will help, as far as that is known.
    #[must_use]
    pub fn refused(mut self, policy: usize, wait: Duration) -> Self {
        let wait = micros_ceil(wait).clamp(1, NEVER - 1);
        let status = match &mut self.0 {
            Repr::One { status, .. } => Some(status),
            Repr::Many { summary, statuses } => {
                (summary.wait, summary.binding) = (wait, Some(policy));
                statuses.get_mut(policy)
            }
        };
        if let Some(status) = status {
            (status.wait, status.violated) = (wait, true);
        }
        self
    }

    /// Who decided: [`DecidedBy::Store`] unless the store could not. Then [`DecidedBy::Local`] if some policy was decided about in
    /// this process, and [`DecidedBy::Open`] if none was.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        let deciders = self.statuses().iter().map(|status| status.decided_by);
        deciders
            .reduce(
                |first, next| {
                    if matches!(first, DecidedBy::Local(_)) || next == DecidedBy::Store { first } else { next }
                },
            )
            .unwrap_or_default()
    }

    /// Why the store did not decide; `None` if it did.
    #[must_use]
    pub fn degraded(&self) -> Option<BackendErrorKind> {
        self.decided_by().error()
    }

    /// Whether the request may go on.
    #[inline]
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        self.wait() == 0
    }

    /// The largest cost that would be admitted at this instant, after this decision. For `all` the least of the members,
    /// for `any` the greatest; `u64::MAX` when no limit applied.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        match &self.0 {
            Repr::One { status, .. } => status.standing.remaining,
            Repr::Many { summary, .. } => summary.remaining,
        }
    }

    /// How long until the same request is admitted if nothing else happens: zero when allowed, `None` when no wait helps
    /// because the cost exceeds what the limit can ever admit.
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.wait() {
            NEVER => None,
            wait => Some(Duration::from_micros(wait)),
        }
    }

    /// How long until no policy can be told from an unused one if nothing else happens.
    #[inline]
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(match &self.0 {
            Repr::One { status, .. } => status.standing.reset,
            Repr::Many { summary, .. } => summary.reset,
        })
    }

    /// How long to wait before going on; more than zero only with a
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket) among the limits.
    #[inline]
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(match &self.0 {
            Repr::One { delay, .. } => *delay,
            Repr::Many { summary, .. } => summary.delay,
        })
    }

    /// Which policy decided, by its place in the set: the one that refused with the longest wait (for `any`, the
    /// shortest), or the admitting one with the least left. `None` when nothing was charged and nothing refused.
    #[inline]
    #[must_use]
    pub const fn binding(&self) -> Option<usize> {
        match &self.0 {
            Repr::One { .. } => Some(0),
            Repr::Many { summary, .. } => summary.binding,
        }
    }

    /// One status per policy, in the set's order.
    #[inline]
    #[must_use]
    pub fn statuses(&self) -> &[Status] {
        match &self.0 {
            Repr::One { status, .. } => std::slice::from_ref(status),
            Repr::Many { statuses, .. } => statuses,
        }
    }
}

/// Where one policy stands after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub(crate) standing: Standing,
    pub(crate) wait: u64,
    pub(crate) applies: bool,
    pub(crate) violated: bool,
    pub(crate) overflow: bool,
    pub(crate) decided_by: DecidedBy,
    /// Of the policy.
    pub(crate) tier: u8,
    /// What the request was charged.
    pub(crate) taken: Taken,
}

// A word for the flags and the decided_by: decisions are moved about on every request.
const _: () = assert!(size_of::<Status>() == 64, "a status is one cache line");

impl Status {
    /// The status of a policy that had no key in this request.
    pub(crate) const SKIPPED: Self = Self {
        standing: Standing { remaining: 0, reset: 0, next: 0 },
        wait: 0,
        applies: false,
        violated: false,
        overflow: false,
        decided_by: DecidedBy::Store,
        tier: 0,
        taken: Taken { cost: 0, mark: Mark { at: 0, frac: 0 } },
    };

    /// Fills in a policy's own decision.
    #[inline(always)]
    pub(crate) fn report(&mut self, outcome: Outcome, standing: Standing) {
        (self.standing, self.wait, self.taken) = (standing, outcome.wait, outcome.taken);
        (self.applies, self.violated) = (true, outcome.wait > 0);
    }

    /// Whether the policy applied to the request at all.
    #[inline]
    #[must_use]
    pub const fn applies(&self) -> bool {
        self.applies
    }

    /// Whether the policy by itself would have refused the request.
    #[inline]
    #[must_use]
    pub const fn refuses(&self) -> bool {
        self.wait > 0
    }

    /// Whether the refusal is due to this policy. A member of an `any` that refuses is not to blame when another admits.
    #[inline]
    #[must_use]
    pub const fn is_violated(&self) -> bool {
        self.violated
    }

    /// Units this request was charged: 0 when it was refused, or another member of an `any` paid.
    #[inline]
    #[must_use]
    pub const fn charged(&self) -> u64 {
        self.taken.cost
    }

    /// The largest cost this policy would admit at this instant.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.standing.remaining
    }

    /// How long until this policy admits the request: zero when it does, `None` when no wait helps.
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        if self.wait == NEVER { None } else { Some(Duration::from_micros(self.wait)) }
    }

    /// How long until this policy cannot be told from an unused one.
    #[inline]
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.standing.reset)
    }

    /// The time in which the client can use no more than what remains, as the draft's `t` means it. For a decision made
    /// by a [`LocalShare`](crate::LocalShare), ask with the policy of [its set](crate::LocalShare::set).
    #[inline]
    #[must_use]
    pub fn effective_window(&self, policy: &Policy) -> Duration {
        Duration::from_micros(policy.tier(self.tier).algorithm().effective_window(self.standing))
    }

    /// Whether the key shared an overflow bucket because the store was full of live keys. It may be refused early, and
    /// never late.
    #[inline]
    #[must_use]
    pub const fn is_overflow(&self) -> bool {
        self.overflow
    }

    /// The [tier](crate::Policy::tier) of the policy that the request was in; 0 for a policy without tiers.
    #[inline]
    #[must_use]
    pub const fn tier(&self) -> u8 {
        self.tier
    }

    /// Who decided about this policy. One that is [`DecidedBy::Open`] does not [apply](Self::applies): it was skipped.
    #[inline]
    #[must_use]
    pub const fn decided_by(&self) -> DecidedBy {
        self.decided_by
    }
}
