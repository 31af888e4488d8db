use std::iter;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{ExceptionEffect, Mark, NEVER, Outcome, Standing, StateCharge};
use crate::backend_error::BackendErrorKind;
use crate::call::Call;
use crate::decided_by::DecidedBy;
use crate::policy::Policy;
use crate::time::micros_ceil;

/// The outcome of one request against a set of policies.
///
/// All times are relative to the instant of the decision and exact to the microsecond. Durations
/// are rounded up, `remaining` is rounded down.
///
/// ```
/// use throttle_core::{Gcra, Limiter, Policy, Rate};
///
/// let limiter = Limiter::in_memory(Policy::new(
///     "per-user",
///     Gcra::new(Rate::per_hour(60)).burst(1),
/// )?)?;
/// let admitted = limiter.check("ada", 1);
/// assert_eq!(
///     (
///         admitted.is_admitted(),
///         admitted.remaining(),
///         admitted.binding()
///     ),
///     (true, 0, Some(0))
/// );
/// let never = limiter.check("ada", 2);
/// assert_eq!(
///     (never.is_admitted(), never.retry_after()),
///     (false, None),
///     "the burst is 1"
/// );
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision(Form);

/// One policy is the usual case, and its status is the summary: storing it twice would cost more
/// than deciding. The statuses of several are on the heap, so that a decision is small to move, and
/// its clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    One {
        status: Status,
        delay: u64,
    },
    Many {
        summary: Summary,
        statuses: Arc<[Status]>,
    },
}

/// The outcome of a set as a whole. Times are µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) wait: u64,
    pub(crate) remaining: u64,
    pub(crate) reset: u64,
    pub(crate) delay: u64,
    pub(crate) binding: Option<usize>,
}

impl Summary {
    /// Of no policy.
    const NONE: Self = Self {
        wait: 0,
        remaining: u64::MAX,
        reset: 0,
        delay: 0,
        binding: None,
    };

    /// Counts a policy of an `all` that was asked: the longest wait, and the first of equals,
    /// decides. NEVER is the longest of all.
    #[inline(always)]
    pub(crate) fn ask(&mut self, index: usize, status: &Status) {
        if status.wait > self.wait {
            (self.wait, self.binding) = (status.wait, Some(index));
        }
    }

    /// Counts where a policy of an `all` stands.
    #[inline(always)]
    pub(crate) fn answer(&mut self, index: usize, status: &Status) {
        self.reset = self.reset.max(status.standing.reset);
        if status.standing.remaining < self.remaining {
            self.remaining = status.standing.remaining;
            if self.wait == 0 {
                self.binding = Some(index);
            }
        }
    }
}

impl Decision {
    /// Gives the decision of one policy its own form, so that the same decisions of different
    /// backends are equal.
    #[inline]
    pub(crate) fn set_form(&mut self) {
        if let Form::Many { summary, statuses } = &self.0
            && let [status] = **statuses
            && summary.binding == Some(0)
        {
            let delay = summary.delay;
            self.0 = Form::One { status, delay };
        }
    }

    /// The decision of one policy that applies.
    #[inline]
    pub(crate) fn of_one(outcome: Outcome, standing: Standing, tier: u8, overflow: bool) -> Self {
        let Outcome { wait, delay, taken } = outcome;
        let (violated, decided_by) = (wait > 0, DecidedBy::Store);
        let (applies, excepted) = (Applies::Enforced, ExceptionEffect::No);
        let status = Status {
            standing,
            wait,
            applies,
            violated,
            overflow,
            excepted,
            decided_by,
            tier,
            taken,
        };
        Self(Form::One { status, delay })
    }

    /// The decision of one policy, which an exception of the key may have made.
    pub(crate) fn excepted(mut self, excepted: ExceptionEffect) -> Self {
        if let Form::One { status, .. } = &mut self.0 {
            status.excepted = excepted;
        }
        self
    }

    #[inline]
    const fn wait(&self) -> u64 {
        match &self.0 {
            Form::One { status, .. } => status.wait,
            Form::Many { summary, .. } => summary.wait,
        }
    }

    /// The decision about a request to which none of a set's policies applies: admitted, nothing
    /// charged.
    #[must_use]
    pub fn not_limited(policies: usize) -> Self {
        Self(Form::Many {
            summary: Summary::NONE,
            statuses: iter::repeat_n(Status::SKIPPED, policies).collect(),
        })
    }

    /// What is filled in of a decision of many.
    #[inline(always)]
    pub(crate) fn parts_mut(&mut self) -> (&mut Summary, &mut [Status]) {
        if let Form::Many { summary, statuses } = &mut self.0
            && let Some(statuses) = Arc::get_mut(statuses)
        {
            return (summary, statuses);
        }
        unreachable!("only a new decision of many is filled in")
    }

    /// Begins anew, with policies that do not apply.
    pub(crate) fn skip_all(&mut self) {
        let (summary, statuses) = self.parts_mut();
        *summary = Summary::NONE;
        statuses.fill(Status::SKIPPED);
    }

    /// The decision about a request that the store could not decide, if every policy admits
    /// requests while the store fails. The request is admitted and nothing is charged. No policy
    /// [applies](Status::applies); each one that would have applied is marked [`DecidedBy::Open`].
    #[must_use]
    pub fn open(calls: &[Call], why: BackendErrorKind) -> Self {
        let mut decision = Self::not_limited(calls.len());
        decision.set_decided_by(|index| {
            if calls[index].key().is_some() {
                DecidedBy::Open(why)
            } else {
                DecidedBy::Store
            }
        });
        decision
    }

    /// Sets what decided each policy, by its index in the set.
    pub(crate) fn set_decided_by(&mut self, decided_by: impl Fn(usize) -> DecidedBy) {
        let statuses = match &mut self.0 {
            Form::One { status, .. } => std::slice::from_mut(status),
            Form::Many { statuses, .. } => Arc::make_mut(statuses),
        };
        statuses
            .iter_mut()
            .enumerate()
            .for_each(|(index, status)| status.decided_by = decided_by(index));
    }

    /// Turns a peek into a refusal by the policy at the index `policy` in the set. A layer that
    /// queues requests calls it if earlier requests are queued for the units that remain. `wait` is
    /// the expected wait.
    #[must_use]
    pub fn refused(mut self, policy: usize, wait: Duration) -> Self {
        let wait = micros_ceil(wait).clamp(1, NEVER - 1);
        let status = match &mut self.0 {
            Form::One { status, .. } => Some(status),
            Form::Many { summary, statuses } => {
                (summary.wait, summary.binding) = (wait, Some(policy));
                Arc::make_mut(statuses).get_mut(policy)
            }
        };
        if let Some(status) = status {
            (status.wait, status.violated) = (wait, true);
        }
        self
    }

    /// What decided: [`DecidedBy::Store`] unless the store could not decide. Then
    /// [`DecidedBy::Local`] if this process decided some policy, and [`DecidedBy::Open`] if it
    /// decided none.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        let deciders = self.statuses().iter().map(|status| status.decided_by);
        deciders
            .reduce(|first, next| {
                if matches!(first, DecidedBy::Local(_)) || next == DecidedBy::Store {
                    first
                } else {
                    next
                }
            })
            .unwrap_or_default()
    }

    /// Why the store did not decide; `None` if it did.
    #[must_use]
    pub fn degraded(&self) -> Option<BackendErrorKind> {
        self.decided_by().error()
    }

    /// Whether the request is admitted.
    #[inline]
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        self.wait() == 0
    }

    /// The largest cost that would be admitted at this instant, after this decision: the least of
    /// the members of an `all`, the greatest of those of an `any`, and `u64::MAX` when no policy
    /// applied.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        match &self.0 {
            Form::One { status, .. } => status.standing.remaining,
            Form::Many { summary, .. } => summary.remaining,
        }
    }

    /// How long until the same request is admitted if nothing else happens: zero when it was
    /// admitted, `None` when no wait helps because the cost exceeds the capacity. Of several
    /// policies it is the longest wait, after which one refuses whose key has had an
    /// [`Exception`](crate::backend::Exception) until then, such as a raised limit.
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.wait() {
            // Of most requests: nothing is divided into seconds.
            0 => Some(Duration::ZERO),
            NEVER => None,
            wait => Some(Duration::from_micros(wait)),
        }
    }

    /// How long until the key of every policy equals an unused one if nothing else happens.
    #[inline]
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(match &self.0 {
            Form::One { status, .. } => status.standing.reset,
            Form::Many { summary, .. } => summary.reset,
        })
    }

    /// How long to wait before going on; more than zero only with a
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket) among the limits.
    #[inline]
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(match &self.0 {
            Form::One { delay, .. } => *delay,
            Form::Many { summary, .. } => summary.delay,
        })
    }

    /// The policy that the outcome comes from, by its index in the set: the refusing policy with
    /// the longest wait (of an `any`, the shortest), or the admitting policy with the least
    /// remaining. `None` when nothing was charged and nothing refused.
    #[inline]
    #[must_use]
    pub const fn binding(&self) -> Option<usize> {
        match &self.0 {
            Form::One { .. } => Some(0),
            Form::Many { summary, .. } => summary.binding,
        }
    }

    /// One status per policy, in the set's order.
    #[inline]
    #[must_use]
    pub fn statuses(&self) -> &[Status] {
        match &self.0 {
            Form::One { status, .. } => std::slice::from_ref(status),
            Form::Many { statuses, .. } => statuses,
        }
    }
}

/// The status of one policy after a decision.
///
/// ```
/// use throttle_core::{Gcra, Limiter, Policy, PolicyTree, Rate};
///
/// let policy = |name, count| Policy::new(name, Gcra::new(Rate::per_day(count)));
/// let limiter = Limiter::in_memory(PolicyTree::All(vec![
///     policy("ip", 1)?.into(),
///     policy("user", 5)?.into(),
/// ]))?;
/// assert_eq!(limiter.check("ada", 1).statuses()[1].remaining(), 4);
///
/// let refused = limiter.check("ada", 1);
/// let [ip, user] = refused.statuses() else {
///     panic!("two policies")
/// };
/// assert!(ip.is_violated() && !user.is_violated());
/// assert_eq!(user.charged(), 0);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub(crate) standing: Standing,
    pub(crate) wait: u64,
    applies: Applies,
    pub(crate) violated: bool,
    pub(crate) overflow: bool,
    pub(crate) excepted: ExceptionEffect,
    pub(crate) decided_by: DecidedBy,
    /// Of the policy.
    pub(crate) tier: u8,
    /// What the request was charged.
    pub(crate) taken: StateCharge,
}

/// Whether a policy had a key in the request, and refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Applies {
    No,
    Enforced,
    Audited,
}

// Decisions are moved on every request, so the flags share one word.
const _: () = assert!(size_of::<Status>() == 64, "a status is one cache line");

const _: () = assert!(
    size_of::<Decision>() <= 88,
    "a decision is moved several times"
);

impl Status {
    /// The status of a policy that had no key in this request.
    pub(crate) const SKIPPED: Self = Self {
        standing: Standing {
            remaining: 0,
            reset: 0,
            next: 0,
        },
        wait: 0,
        applies: Applies::No,
        violated: false,
        overflow: false,
        excepted: ExceptionEffect::No,
        decided_by: DecidedBy::Store,
        tier: 0,
        taken: StateCharge {
            cost: 0,
            mark: Mark { at: 0, frac: 0 },
        },
    };

    /// Fills in how long the request has to wait, and what it is charged unless others refuse it.
    pub(crate) fn ask(&mut self, wait: u64, cost: u64) {
        (self.applies, self.violated, self.wait) = (Applies::Enforced, wait > 0, wait);
        self.taken.cost = if wait > 0 { 0 } else { cost };
    }

    /// Fills in a policy's own decision.
    #[inline(always)]
    pub(crate) fn report(&mut self, outcome: Outcome, standing: Standing) {
        (self.standing, self.wait, self.taken) = (standing, outcome.wait, outcome.taken);
        (self.applies, self.violated) = (Applies::Enforced, outcome.wait > 0);
    }

    /// Marks the status, if the policy applies, as that of an audited policy.
    pub(crate) fn mark_audited(&mut self) {
        if self.applies() {
            (self.applies, self.violated) = (Applies::Audited, false);
        }
    }

    /// Whether the policy applied to the request.
    #[inline]
    #[must_use]
    pub const fn applies(&self) -> bool {
        !matches!(self.applies, Applies::No)
    }

    /// Whether the policy applied to the request and is enforced.
    #[inline]
    #[must_use]
    pub const fn is_enforced(&self) -> bool {
        matches!(self.applies, Applies::Enforced)
    }

    /// Whether the policy applied to the request and is [audited](Policy::audit): what the status
    /// says is what would have happened, but for what it was [charged](Self::charged).
    #[inline]
    #[must_use]
    pub const fn is_audited(&self) -> bool {
        matches!(self.applies, Applies::Audited)
    }

    /// Whether the policy is audited and would have refused the request.
    #[inline]
    #[must_use]
    pub const fn would_refuse(&self) -> bool {
        self.refuses() && self.is_audited()
    }

    /// Whether the policy alone would have refused the request.
    #[inline]
    #[must_use]
    pub const fn refuses(&self) -> bool {
        self.wait > 0
    }

    /// Whether this policy caused the refusal. A refusing member of an `any` is not violated if
    /// another member admits, and an audited policy never is.
    #[inline]
    #[must_use]
    pub const fn is_violated(&self) -> bool {
        self.violated
    }

    /// Units that the request was charged: 0 when it was refused, or when another member of an
    /// `any` was charged.
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

    /// How long until this policy admits the request: zero when it does now, `None` when no wait
    /// helps.
    #[inline]
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        if self.wait == NEVER {
            None
        } else {
            Some(Duration::from_micros(self.wait))
        }
    }

    /// How long until this policy's key equals an unused one.
    #[inline]
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.standing.reset)
    }

    /// The time within which the client can use no more than `remaining`: the `t` of the header
    /// drafts. For a decision made by a [`LocalShare`](crate::LocalShare), pass the policy of [its
    /// set](crate::LocalShare::set); for one by a key's own parameters, a policy with these.
    #[inline]
    #[must_use]
    pub fn effective_window(&self, policy: &Policy) -> Duration {
        Duration::from_micros(
            policy
                .tier(self.tier)
                .algorithm()
                .effective_window(self.standing),
        )
    }

    /// Whether the key shared an overflow bucket because the store was full of live keys. Such a
    /// key may be refused early, and is never over-admitted.
    #[inline]
    #[must_use]
    pub const fn is_overflow(&self) -> bool {
        self.overflow
    }

    /// Whether an [exception](crate::backend::Exception) of the key decided, and not the policy's
    /// own limit.
    #[inline]
    #[must_use]
    pub const fn is_excepted(&self) -> bool {
        !matches!(self.excepted, ExceptionEffect::No)
    }

    /// Whether the key is banned, after too many [strikes](crate::backend::Ban).
    #[inline]
    #[must_use]
    pub const fn is_banned(&self) -> bool {
        matches!(self.excepted, ExceptionEffect::Banned)
    }

    /// The [tier](crate::Policy::tier) of the policy that the request was in; 0 for a policy
    /// without tiers, and [`Policy::OWN`](crate::Policy::OWN) for a key with parameters of its own.
    #[inline]
    #[must_use]
    pub const fn tier(&self) -> u8 {
        self.tier
    }

    /// What decided this policy. A policy that is [`DecidedBy::Open`] was skipped: it does not
    /// [apply](Self::applies).
    #[inline]
    #[must_use]
    pub const fn decided_by(&self) -> DecidedBy {
        self.decided_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, CalendarQuota, FixedWindow, Gcra};
    use crate::limiter::Limiter;
    use crate::memory::MemoryBackend;
    use crate::rate::Rate;
    use crate::set::{PolicySet, PolicyTree};
    use crate::time::{ManualClock, Timestamp};

    #[test]
    fn a_refused_peek_names_its_policy_and_a_finite_wait() {
        for policies in [1, 2, 5] {
            let policy = |n: usize| {
                Policy::new(&format!("p{n}"), Gcra::new(Rate::per_day(9)))
                    .expect("a policy")
                    .into()
            };
            let limiter = Limiter::in_memory(PolicyTree::All((0..policies).map(policy).collect()))
                .expect("a set");
            let (peek, last) = (limiter.peek("ada"), policies - 1);
            assert!(peek.is_admitted());
            for (wait, told) in [
                (Duration::ZERO, Duration::from_micros(1)),
                (Duration::from_nanos(1_001), Duration::from_micros(2)),
                (Duration::from_secs(3), Duration::from_secs(3)),
                (Duration::MAX, Duration::from_micros(NEVER - 1)),
            ] {
                let refused = peek.clone().refused(last, wait);
                assert_eq!(
                    (refused.retry_after(), refused.binding()),
                    (Some(told), Some(last)),
                    "{policies}"
                );
                for (n, status) in refused.statuses().iter().enumerate() {
                    let expected = (
                        n == last,
                        n == last,
                        Some(if n == last { told } else { Duration::ZERO }),
                    );
                    assert_eq!(
                        (status.refuses(), status.is_violated(), status.retry_after()),
                        expected
                    );
                }
            }
        }
    }

    #[test]
    fn effective_window_ends_with_the_window_or_follows_the_pace() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let noon = Timestamp::from_micros(1_790_078_400_000_000);
        let window = |algorithm: Algorithm, cost| {
            let memory = MemoryBackend::builder()
                .clock(ManualClock::new(noon))
                .build();
            let policy = Policy::new("p", algorithm).expect("a policy");
            let limiter = Limiter::new(memory, PolicySet::new(policy).expect("a set"))
                .expect("memory holds it");
            let decision = limiter.check("ada", cost);
            assert!(decision.is_admitted());
            decision.statuses()[0].effective_window(&limiter.set().policies()[0])
        };
        let daily = [
            FixedWindow::new(Rate::per_day(24))
                .build()
                .expect("a limit"),
            CalendarQuota::daily(24).build().expect("a limit"),
        ];
        for algorithm in daily {
            assert_eq!(window(algorithm, 4), 12 * HOUR, "{algorithm:?}");
        }
        let paced = Gcra::new(Rate::per_day(24))
            .burst(24)
            .build()
            .expect("a limit");
        assert_eq!(window(paced, 4), 20 * HOUR);
        assert_eq!(window(paced, 24), HOUR, "the next unit");
    }

    #[test]
    fn a_decision_is_the_stores_unless_it_did_not_decide_some_policy() {
        let why = BackendErrorKind::Timeout;
        let (store, local, open) = (
            DecidedBy::Store,
            DecidedBy::Local(why),
            DecidedBy::Open(why),
        );
        for (each, whole) in [
            (vec![], store),
            (vec![store], store),
            (vec![store, store], store),
            (vec![store, open], open),
            (vec![open, store], open),
            (vec![store, local], local),
            (vec![local, store], local),
            (vec![local, open], local),
            (vec![open, local], local),
            (vec![store, open, store, local, open], local),
        ] {
            let mut decision = Decision::not_limited(each.len());
            decision.set_decided_by(|index| each[index]);
            assert_eq!(decision.decided_by(), whole, "{each:?}");
            assert_eq!(
                decision.degraded(),
                (whole != store).then_some(why),
                "{each:?}"
            );
        }
    }

    #[test]
    fn a_request_that_nothing_limits_is_admitted_at_once_and_charged_nothing() {
        let calls = [Call::from(crate::key::Key::from("ada")), Call::SKIP];
        let open = Decision::open(&calls, BackendErrorKind::Timeout);
        for decision in [Decision::not_limited(2), open.clone()] {
            assert!(decision.is_admitted() && decision.binding().is_none());
            assert_eq!(
                (decision.remaining(), decision.retry_after()),
                (u64::MAX, Some(Duration::ZERO))
            );
            assert_eq!(
                (decision.reset_after(), decision.delay()),
                (Duration::ZERO, Duration::ZERO)
            );
            assert_eq!(decision.statuses().len(), 2);
            for status in decision.statuses() {
                let flags = [
                    status.applies(),
                    status.refuses(),
                    status.is_violated(),
                    status.is_overflow(),
                ];
                assert_eq!(flags, [false; 4]);
                assert_eq!(
                    (status.charged(), status.remaining(), status.tier()),
                    (0, 0, 0)
                );
                assert_eq!(
                    (status.retry_after(), status.reset_after()),
                    (Some(Duration::ZERO), Duration::ZERO)
                );
            }
        }
        let deciders = open
            .statuses()
            .iter()
            .map(Status::decided_by)
            .collect::<Vec<_>>();
        assert_eq!(
            deciders,
            [DecidedBy::Open(BackendErrorKind::Timeout), DecidedBy::Store]
        );
    }
}
