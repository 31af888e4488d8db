//! Holds a request that a limit would refuse until there is room for it, where the limit waits.
//!
//! Open `queues` for the tickets and for what is known of each queue, `line` for the order of the
//! requests and for what becomes of one that is not polled, and `forecast` for when one of them is
//! admitted.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Algorithm, Backend, Decision, PolicyNode, PolicySet, Timestamp};
use tokio::time::Instant;

use super::ask::{Calls, RequestCalls};
use super::decide::{self, DecisionOutcome};
use crate::throttle::announcement::under;
use crate::throttle::forecast::Forecast;
use crate::throttle::queues::{JoinRequest, QueueKey, QueueTicket};
use crate::throttle::shared_layer::{ErasedLayer, SharedLayer};
use crate::time::{FAR, micros};

/// How late the first request of a queue may wake and still be decided as of its turn. Turns that a
/// queue misses in a longer stall are lost, so that it does not leave all at once.
const LATEST: Duration = Duration::from_millis(50);

/// How long the first request of a queue waits for the store's answer before the next one may ask:
/// the store may be slow, or the first request is not polled. The next one can still be decided as
/// of its turn.
const ANSWER: Duration = Duration::from_millis(25);

/// How late a turn is taken where the backend's clock is not known, until it is measured: a timer's
/// step and a round trip.
const LATE_OVER_A_STORE: Duration = Duration::from_millis(2);

/// The steps of limits that wait.
pub(crate) struct QueueSteps {
    /// Whether other requests wait for a key of this request, so that it has to queue behind them.
    pub(super) is_behind_others: fn(&dyn ErasedLayer, &[Call]) -> bool,
    /// How long a request that was refused waits for room, if no other request waits for it.
    pub(in crate::throttle) held_for: fn(&dyn ErasedLayer, &Decision) -> Option<Duration>,
    /// The answer to a request, once it has waited for as long as that helps.
    pub(super) decide: for<'a> fn(&'a Arc<dyn ErasedLayer>, &'a RequestCalls) -> DecisionFuture<'a>,
}

type DecisionFuture<'a> = Pin<Box<dyn Future<Output = DecisionOutcome> + Send + 'a>>;

pub(crate) static QUEUE_STEPS: QueueSteps = QueueSteps {
    is_behind_others: |shared, calls| {
        !shared.queues.is_empty() && queue_of(shared, calls).is_some()
    },
    held_for: |shared, decision| {
        Room::after(shared, decision, Duration::ZERO).map(|room| room.wait)
    },
    decide: |shared, request| {
        let held = HeldRequest {
            shared,
            request,
            calls: &request.calls,
            arrived: Instant::now(),
        };
        Box::pin(async move { held.decide().await })
    },
};

/// Whether other requests wait for a key of this request, so that it has to queue behind them.
#[inline]
pub(super) fn is_behind_others<B: Backend>(shared: &SharedLayer<B>, calls: &[Call]) -> bool {
    let steps = shared.uses.queues;
    steps.is_some_and(|steps| (steps.is_behind_others)(shared, calls))
}

/// How long a request that was refused waits for room, if a limit waits.
#[inline]
pub(in crate::throttle) fn held_for<B: Backend>(
    shared: &SharedLayer<B>,
    decision: &Decision,
) -> Option<Duration> {
    (shared.uses.queues?.held_for)(shared, decision)
}

struct HeldRequest<'a> {
    shared: &'a Arc<dyn ErasedLayer>,
    request: &'a RequestCalls,
    calls: &'a [Call],
    arrived: Instant,
}

/// One decision about a request that waits.
struct Turn {
    decided: DecisionOutcome,
    /// The instant as of which it was made.
    at: Instant,
    /// The same by the backend's clock, if that can be read here.
    as_of: Option<Timestamp>,
    is_late: bool,
}

impl HeldRequest<'_> {
    /// Joins the queue first if other requests wait for the same key. Then each turn is decided.
    /// The loop ends when the request is admitted, or when no limit that refuses it waits longer.
    /// If another limit refuses, the request waits in that limit's queue. A request that loses its
    /// position while others wait is refused behind them.
    async fn decide(&self) -> DecisionOutcome {
        let mut since = self.now();
        let mut ticket = None;
        if let Some((key, longest)) = queue_of(&**self.shared, self.calls) {
            ticket = self.join(key.clone(), longest);
            if let Some(joined) = &ticket {
                match self.await_turn(joined, since, longest).await {
                    Some(due) => since = due,
                    None => ticket = None,
                }
            }
            if ticket.is_none() && self.shared.queues.contains(&key) {
                // What is left belongs to the requests before it.
                return self.refuse_behind(&key).await;
            }
        }
        loop {
            let turn = self.take_turn(since, ticket.as_ref()).await;
            if let Some(ticket) = &ticket {
                self.advance(ticket, &turn);
            }
            let DecisionOutcome::Made(decision) = &turn.decided else {
                return turn.decided;
            };
            let elapsed = turn.at.saturating_duration_since(self.arrived);
            let Some(room) = Room::after(&**self.shared, decision, elapsed) else {
                // The client counts its wait from now.
                let is_stale = turn.is_late && !decision.is_admitted();
                return if is_stale {
                    decide::decide(self.shared, self.request).await
                } else {
                    turn.decided
                };
            };
            let Some(key) = queue_key(room.index, self.calls) else {
                return turn.decided;
            };
            if ticket
                .as_ref()
                .is_some_and(|ticket: &QueueTicket| ticket.key != key)
            {
                // Another limit has no room now, and the requests behind this one need not wait for
                // that limit too.
                ticket = None;
            }
            if ticket.is_none() {
                ticket = self.join(key.clone(), room.longest);
                if let Some(ticket) = &ticket {
                    self.advance(ticket, &turn);
                }
            }
            let Some(current) = &ticket else {
                return turn.decided;
            };
            since = turn.as_of.map(|as_of| as_of + room.wait);
            let due = turn.at + room.wait;
            drop(turn);
            if current.try_become_first() && current.sleep_until(due).await {
                continue;
            }
            match self.await_turn(current, since, room.longest).await {
                Some(due) => since = due,
                None => {
                    ticket = None;
                    if self.shared.queues.contains(&key) {
                        return self.refuse_behind(&key).await;
                    }
                }
            }
        }
    }

    fn now(&self) -> Option<Timestamp> {
        self.shared.now(self.calls)
    }

    /// The instant until which a request that may wait so long waits to be the first. Where
    /// requests are decided as of their own turn, a late first request delays the ones behind it in
    /// real time only.
    fn latest(&self, longest: Duration) -> Instant {
        self.arrived
            + longest
            + if self.now().is_some() {
                LATEST
            } else {
                Duration::ZERO
            }
    }

    fn join(&self, key: QueueKey, longest: Duration) -> Option<QueueTicket> {
        let late = if self.now().is_some() {
            Duration::ZERO
        } else {
            LATE_OVER_A_STORE
        };
        let (algorithm, units) = (self.algorithm(key.0)?, self.calls.get(key.0)?.cost());
        let (deadline, most) = (self.arrived + longest, self.shared.options.max_waiting());
        let limit = self.shared.applied.get(key.0)?.limit_index;
        let ticket = self.shared.queues.join(
            key,
            &JoinRequest {
                algorithm,
                units,
                deadline,
                most,
                late,
            },
        )?;
        Some(ticket.observed(&self.shared.options.observers, limit))
    }

    /// Waits until a request is the first and due, as far as that is known without asking the
    /// backend. Returns the instant by the backend's clock, `Some(None)` if that clock cannot be
    /// read here, or `None` if the request's longest wait is over before.
    async fn await_turn(
        &self,
        ticket: &QueueTicket,
        since: Option<Timestamp>,
        longest: Duration,
    ) -> Option<Option<Timestamp>> {
        loop {
            if !ticket.become_first(self.latest(longest)).await {
                return None;
            }
            let Some(since) = since else {
                return Some(None);
            };
            let due = self
                .algorithm(ticket.key.0)
                .and_then(|algorithm| ticket.due(algorithm));
            let Some((at, as_of)) = due.filter(|(at, _)| *at <= self.arrived + longest) else {
                return Some(Some(since));
            };
            // A request that is not polled in time loses its turn.
            if ticket.sleep_until(at).await {
                return Some(Some(since.max(as_of)));
            }
        }
    }

    /// Decides about the first request of a queue, as of the instant at which its turn came, so
    /// that the lateness of timers and of the way to a store does not add up.
    async fn take_turn(&self, since: Option<Timestamp>, ticket: Option<&QueueTicket>) -> Turn {
        if let Some(ticket) = ticket {
            ticket.keep_turn(Instant::now() + ANSWER);
        }
        if let Some(full) = decide::saturated(self.shared, &self.request.needs) {
            return Turn {
                decided: DecisionOutcome::Saturated(full),
                at: Instant::now(),
                as_of: None,
                is_late: false,
            };
        }
        if let (Some(ticket), Some(since), Some(now)) = (ticket, since, self.now()) {
            let earliest =
                Timestamp::from_micros(now.as_micros().saturating_sub_unsigned(micros(LATEST)));
            let before = ticket
                .progress()
                .decided
                .map_or(since, |(_, before)| before);
            let as_of = since.max(before).max(earliest).min(now);
            let late = Duration::from_micros(now.micros_since(as_of).unsigned_abs());
            let present = Instant::now();
            let at = present.checked_sub(late).unwrap_or(present);
            let decided = decide::decide_as_of(self.shared, self.calls, as_of).await;
            return Turn {
                decided,
                at,
                as_of: Some(as_of),
                is_late: !late.is_zero(),
            };
        }
        let decided = decide::decide(self.shared, self.request).await;
        Turn {
            decided,
            at: Instant::now(),
            as_of: self.now(),
            is_late: false,
        }
    }

    /// Notes what a decision says about a queue.
    fn advance(&self, ticket: &QueueTicket, turn: &Turn) {
        let DecisionOutcome::Made(decision) = &turn.decided else {
            return;
        };
        let statuses = decision.statuses().iter();
        let mut known = self
            .shared
            .announced
            .policies
            .iter()
            .zip(self.calls)
            .zip(statuses);
        let Some(((policy, call), status)) = known.nth(ticket.key.0) else {
            return;
        };
        let policy = under(policy, call);
        let algorithm = policy.algorithm();
        // The rate of an exception's limit is not known here: the backend is asked at each turn.
        let next = (!status.is_excepted())
            .then(|| Forecast::new(&policy, status, turn.at, (ticket.units(), call.reserve())));
        ticket.advance(|progress| {
            let before = mem::replace(&mut progress.forecast, next);
            match (turn.as_of, before) {
                (Some(as_of), _) => progress.decided = Some((turn.at, as_of)),
                (None, Some(before)) if decision.is_admitted() => {
                    let late = turn
                        .at
                        .saturating_duration_since(before.admits_by(algorithm, ticket.units()));
                    // A single quick turn does not make the next one quick.
                    progress.late = late.max(progress.late - progress.late / 8);
                }
                (None, _) => {}
            }
        });
    }

    /// Refuses a request that other requests are before, by a peek.
    async fn refuse_behind(&self, key: &QueueKey) -> DecisionOutcome {
        let peek: Calls = self.calls.iter().cloned().map(Call::peeking).collect();
        match self.shared.decide(&peek).await {
            Ok(decision) => {
                let units = self.calls.get(key.0).map_or(0, Call::cost);
                let algorithm = self.algorithm(key.0);
                let turn = algorithm
                    .and_then(|algorithm| self.shared.queues.admits_by(key, algorithm, units));
                let wait = turn.map_or(Duration::ZERO, |turn| {
                    turn.saturating_duration_since(Instant::now())
                });
                let own = decision.retry_after();
                // Another limit may refuse it for longer.
                DecisionOutcome::Made(if own.is_none_or(|own| own > wait) {
                    decision
                } else {
                    decision.refused(key.0, wait)
                })
            }
            Err(error) => DecisionOutcome::Failed(error),
        }
    }

    /// The parameters of a policy that decide about the request.
    fn algorithm(&self, index: usize) -> Option<&Algorithm> {
        Some(
            self.calls
                .get(index)?
                .parameters(self.shared.announced.policies.get(index)?),
        )
    }
}

/// The queue that a request has to join, and how long it may wait there. With an `any` it joins
/// none, because another member may admit it.
fn queue_of(shared: &dyn ErasedLayer, calls: &[Call]) -> Option<(QueueKey, Duration)> {
    if shared
        .set()
        .tree()
        .any(|(node, _)| matches!(node, PolicyNode::Any(_)))
    {
        return None;
    }
    shared
        .applied
        .iter()
        .zip(calls)
        .enumerate()
        .find_map(|(index, (limit, call))| {
            let longest = limit.wait_up_to?.min(FAR);
            // A peek takes nothing from the requests in the queue.
            let key = queue_key(index, calls).filter(|_| call.cost() > 0)?;
            shared.queues.contains(&key).then_some((key, longest))
        })
}

fn queue_key(index: usize, calls: &[Call]) -> Option<QueueKey> {
    let call = calls.get(index)?;
    Some((index, call.key()?.clone(), call.reserve()))
}

/// Room for a request that was refused: at which policy, and when.
struct Room {
    index: usize,
    wait: Duration,
    /// The longest wait of that policy's limit.
    longest: Duration,
}

impl Room {
    /// `None` if the request is admitted, or the limits do not wait so long. It has waited for
    /// `elapsed` already.
    fn after(shared: &dyn ErasedLayer, decision: &Decision, elapsed: Duration) -> Option<Self> {
        if decision.is_admitted() {
            return None;
        }
        let (index, wait) = (decision.binding()?, decision.retry_after()?);
        let longest = shared.applied.get(index)?.wait_up_to?.min(FAR);
        let is_in_time = |index: usize| {
            let Some(status) = decision
                .statuses()
                .get(index)
                .filter(|status| status.is_violated())
            else {
                return true;
            };
            let longest = shared.applied.get(index).and_then(|limit| limit.wait_up_to);
            longest
                .zip(status.retry_after())
                .is_some_and(|(longest, wait)| elapsed.saturating_add(wait) <= longest)
        };
        let waits = waits(shared.set(), 0, &is_in_time) && elapsed.saturating_add(wait) <= longest;
        waits.then_some(Self {
            index,
            wait,
            longest,
        })
    }
}

/// Whether a composition waits: an `all` if every member does, an `any` if some member does.
fn waits(set: &PolicySet, node: usize, policy_waits: &dyn Fn(usize) -> bool) -> bool {
    match set.node(node) {
        PolicyNode::Policy(index) => policy_waits(index),
        PolicyNode::All => set
            .members(node)
            .all(|member| waits(set, member, policy_waits)),
        PolicyNode::Any(_) => set
            .members(node)
            .any(|member| waits(set, member, policy_waits)),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use throttle_core::backend::{Exception, KeyStep, Treatment};
    use throttle_core::{Clock, Gcra, IntoAlgorithm, Key, MemoryBackend, Rate};
    use tokio::task::JoinSet;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{Constant, ThrottleLayer, limit};

    /// Goes by the runtime's clock.
    #[derive(Clone, Debug)]
    struct PausedClock(Instant);

    impl Clock for PausedClock {
        fn now(&self) -> Timestamp {
            Timestamp::EPOCH + Duration::from_secs(1) + self.0.elapsed()
        }
    }

    /// The policy's rate would say that the second of them waits for a second.
    #[tokio::test(start_paused = true)]
    async fn requests_under_an_exceptions_limit_wait_by_its_rate() {
        let store = MemoryBackend::builder()
            .clock(PausedClock(Instant::now()))
            .build();
        let slow = limit("p", Gcra::new(Rate::per_second(1)))
            .by(Constant)
            .wait_up_to(Duration::from_millis(300));
        let layer = ThrottleLayer::builder(slow).backend(store).build().unwrap();
        let fast = Gcra::new(Rate::per_second(100))
            .burst(100)
            .into_algorithm()
            .unwrap();
        let exception = Exception {
            treatment: Treatment::Limit(Arc::new(fast)),
            until: Timestamp::from_micros(3_600_000_000),
        };
        let shared = layer.current.with(Arc::clone);
        shared
            .backend
            .run(
                &shared.prepared,
                0,
                KeyStep::Except(Key::CONSTANT, Some(exception)),
            )
            .await
            .unwrap();
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(()))
        }));
        let (mut requests, began) = (JoinSet::new(), Instant::now());
        for _ in 0..110 {
            requests.spawn(service.clone().oneshot(Request::new(())));
        }
        let statuses = requests
            .join_all()
            .await
            .into_iter()
            .map(|response| response.unwrap().status());
        assert_eq!(
            statuses.filter(|status| *status == StatusCode::OK).count(),
            110
        );
        let took = began.elapsed();
        assert!(
            (100..150).contains(&took.as_millis()),
            "one each 10 ms: {took:?}"
        );
    }
}
