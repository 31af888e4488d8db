//! What the limits of a layer would do with a request, without doing it.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{
    AnyCharge, Backend, BackendError, Decision, Key, Policy, PolicyNode, PolicySet, Status,
};

use crate::limit::explained::{ExplainedLimit, Explanation, KeyLeft, Verdict};
use crate::limit::{Applied, OnMissing};
use crate::throttle::{Shared, composition_waits, under};

/// Looks at what a request would be charged to, and charges nothing.
///
/// # Errors
///
/// If the backend fails.
pub(crate) async fn explain<B: Backend>(
    shared: Arc<Shared<B>>,
    parts: &Parts,
) -> Result<Explanation, BackendError> {
    if let Some(why) = mismatch(&shared, parts) {
        return Ok(skipped(&shared, why));
    }
    let set = B::set(&shared.prepared);
    let (mut asked, mut looks) = (Vec::new(), Vec::new());
    for limit in &*shared.applied {
        let (units, look) = ask(limit, parts).await;
        asked.push(units);
        looks.push(look);
    }
    let rejects = asked
        .iter()
        .any(|asked| matches!(asked, Err(Verdict::RefusesWithoutKey(_))));
    let decision = match looks.iter().all(|call| call.key().is_none()) {
        true => Decision::not_limited(looks.len()),
        false => shared.backend.decide(&shared.prepared, &looks).await?,
    };
    let (mut limits, mut waits) = (Vec::new(), Vec::new());
    for ((policy, status), (asked, look)) in set
        .policies()
        .iter()
        .zip(decision.statuses())
        .zip(asked.into_iter().zip(&looks))
    {
        let (limit, wait) = match asked {
            Ok((cost, has_key)) => {
                let policy = under(policy, look);
                let wait = wait(&policy, status, (cost, look.reserve()));
                let left = KeyLeft {
                    cost,
                    has_key,
                    tier: look.tier(),
                    reserve: look.reserve(),
                    is_excepted: status.is_excepted(),
                    units: status.remaining(),
                    of: policy.algorithm().capacity(),
                    retry_after: Some(wait).filter(|wait| *wait < NEVER),
                    resets_in: status.reset_after(),
                };
                let limit = &shared.applied[limits.len()];
                let (refuses, wait) = match limit.audit {
                    Some(_) => (Verdict::WouldRefuse, None),
                    None if is_held(limit, wait) => (Verdict::Holds, Some(wait)),
                    None => (Verdict::Refuses, Some(wait)),
                };
                (
                    ExplainedLimit::looked(
                        policy.policy_name(),
                        left,
                        limit.priority.as_ref(),
                        refuses,
                    ),
                    wait,
                )
            }
            Err(verdict) => {
                let wait = matches!(verdict, Verdict::RefusesWithoutKey(_)).then_some(NEVER);
                (ExplainedLimit::new(policy.policy_name(), verdict), wait)
            }
        };
        limits.push(limit);
        waits.push(wait);
    }
    let (permits, has_permits) = explain_permits(&shared, parts).await;
    limits.extend(permits);
    let wait = if rejects || !has_permits {
        NEVER
    } else {
        wait_of(set, 0, &waits).unwrap_or_default()
    };
    let (is_admitted, retry_after) = (wait.is_zero(), Some(wait).filter(|wait| *wait < NEVER));
    let holds = |place: usize| {
        waits[place].is_none_or(|wait| wait.is_zero() || is_held(&shared.applied[place], wait))
    };
    let binds = |place: usize| waits[place] == Some(wait) && is_held(&shared.applied[place], wait);
    let is_held = composition_waits(set, 0, &holds) && (0..waits.len()).any(binds);
    Ok(Explanation {
        limits,
        is_admitted,
        is_held,
        retry_after,
        layer_skips: None,
    })
}

/// What the limits on requests in flight would do, and whether the request would get all its
/// permits.
async fn explain_permits<B: Backend>(
    shared: &Shared<B>,
    parts: &Parts,
) -> (Vec<ExplainedLimit>, bool) {
    let (mut explained, mut calls) = (Vec::new(), Vec::new());
    for (index, limit) in shared.permits.limits().iter().enumerate() {
        let (asked, look) = ask(&limit.applied, parts).await;
        let cost = asked.as_ref().map_or(0, |(cost, _)| *cost);
        explained.push(match asked {
            Err(verdict) => ExplainedLimit::new(&limit.name, verdict),
            Ok((cost, has_key)) => {
                let units = shared.permits.free(index, &look);
                let left = KeyLeft {
                    cost,
                    has_key,
                    tier: 0,
                    is_excepted: false,
                    reserve: look.reserve(),
                    units,
                    of: limit.most,
                    retry_after: (cost <= units).then_some(Duration::ZERO),
                    resets_in: Duration::ZERO,
                };
                let priority = limit.applied.priority.as_ref();
                ExplainedLimit::looked(&limit.name, left, priority, Verdict::Refuses)
            }
        });
        calls.push(look.costing(cost));
    }
    let has_permits = shared.permits.look(&calls).is_ok();
    (explained, has_permits)
}

/// Whether a limit holds a request that it admits after so long.
fn is_held(limit: &Applied, wait: Duration) -> bool {
    !wait.is_zero() && limit.wait_up_to.is_some_and(|longest| wait <= longest)
}

/// Why the layer does not apply to a request; `None` if it does.
fn mismatch<B: Backend>(shared: &Shared<B>, parts: &Parts) -> Option<String> {
    let when = shared
        .options
        .settings
        .when
        .as_ref()
        .filter(|when| !when.holds(parts))?;
    Some(
        when.mismatch(parts)
            .unwrap_or_else(|| "the program's condition does not hold".to_owned()),
    )
}

/// What the layer does with a request to which it does not apply: nothing.
fn skipped<B: Backend>(shared: &Shared<B>, why: String) -> Explanation {
    let policies = B::set(&shared.prepared)
        .policies()
        .iter()
        .map(Policy::policy_name);
    let permits = shared.permits.limits().iter().map(|limit| &limit.name);
    let names = policies.chain(permits);
    let limits = names
        .map(|name| ExplainedLimit::new(name, Verdict::Skips(String::new())))
        .collect();
    let retry_after = Some(Duration::ZERO);
    Explanation {
        limits,
        is_admitted: true,
        is_held: false,
        retry_after,
        layer_skips: Some(why),
    }
}

/// What a request asks of a limit (units, and whether it has a key of its own) or what the limit
/// does without a look, and the look.
async fn ask(limit: &Applied, parts: &Parts) -> (Result<(u64, bool), Verdict>, Call) {
    let unasked = |verdict| (Err(verdict), Call::SKIP);
    if limit
        .when
        .as_ref()
        .is_some_and(|applies| !applies.holds(parts))
    {
        return unasked(Verdict::Skips(String::new()));
    }
    let cost = limit.cost.as_ref().map_or(1, |cost| cost(parts));
    let (key, tier) = limit.find(parts).await;
    let has_key = key.is_some();
    let key = match (key, limit.on_missing) {
        (Some(key), _) => key,
        (None, OnMissing::Share) => Key::missing(),
        (None, OnMissing::Skip) => {
            return unasked(Verdict::Skips(
                "it has no key, and on-missing is \"skip\"".to_owned(),
            ));
        }
        (None, OnMissing::Reject(status)) => return unasked(Verdict::RefusesWithoutKey(status)),
    };
    (
        Ok((cost, has_key)),
        limit.in_class(tier.of(Call::peek(key)), parts),
    )
}

/// What rounding may add.
const MICRO: Duration = Duration::from_micros(1);

/// The wait of a request that no wait is known to help.
const NEVER: Duration = Duration::MAX;

/// When a limit admits a cost, by a look at its key, if no other request comes.
///
/// A look says when the next unit comes if none is left, and when all units are left. Those of a
/// bucket that drains come evenly before that. Of other limits it is not known when they come, so
/// the answer is when all are left. After a change of the file or of the client's tier, it is an
/// estimate for larger costs until the limit admits a request.
///
/// To a request of a class, the units beyond its reserve are all that there are.
fn wait(policy: &Policy, status: &Status, (cost, reserve): (u64, u64)) -> Duration {
    let algorithm = policy.tier(status.tier()).algorithm();
    let (left, most) = (
        status.remaining(),
        algorithm.capacity().saturating_sub(reserve),
    );
    if cost <= left {
        return Duration::ZERO;
    }
    if cost > most {
        return NEVER;
    }
    if (left, cost) == (0, 1) {
        return status.effective_window(policy);
    }
    // At which rate units come under an exception is not known.
    if status.is_excepted() {
        return status.reset_after();
    }
    let (count, period) = (
        algorithm.rate().count().max(1),
        algorithm.rate().period_micros(),
    );
    let drained_in = |units: u64| {
        let micros = u128::from(units) * u128::from(period) / u128::from(count);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    };
    let reset = status.reset_after();
    let is_own = match most - left {
        // The next unit tells how much of the reserve is used.
        used if used == most && reserve > 0 => {
            reset
                .saturating_sub(status.effective_window(policy))
                .abs_diff(drained_in(most - 1))
                <= MICRO
        }
        used => reset > drained_in(used - 1) && reset <= drained_in(used).saturating_add(MICRO),
    };
    if algorithm.drains() && is_own {
        reset - drained_in(most - cost)
    } else {
        reset
    }
}

/// When a node of the composition admits the request, by when its policies do; `None` where none of
/// it applies.
fn wait_of(set: &PolicySet, node: usize, waits: &[Option<Duration>]) -> Option<Duration> {
    let members = || {
        set.members(node)
            .filter_map(|member| wait_of(set, member, waits))
    };
    match set.node(node) {
        PolicyNode::Policy(place) => waits[place],
        PolicyNode::All => members().max(),
        PolicyNode::Any(AnyCharge::First | AnyCharge::EveryAdmitting) => members().min(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use throttle_core::backend::{Exception, Treatment};
    use throttle_core::{
        Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, LeakyMeter,
        ManualClock, MemoryBackend, Rate, SlidingLog, SlidingWindow, TokenBucket,
    };

    use super::*;

    fn algorithm() -> impl Strategy<Value = Algorithm> {
        (0..8_usize, 1..20_u64, 1..5_000_u64, 1..30_u64).prop_map(|(kind, count, micros, burst)| {
            let rate = Rate::new(count, Duration::from_micros(10 * micros));
            match kind {
                0 => Gcra::new(rate).burst(burst).into_algorithm(),
                1 => TokenBucket::new(rate).burst(burst).into_algorithm(),
                2 => LeakyMeter::new(rate).capacity(burst).into_algorithm(),
                3 => IntervalBucket::new(burst)
                    .refill(count.min(burst), rate.period())
                    .into_algorithm(),
                4 => FixedWindow::new(rate).into_algorithm(),
                5 => CalendarQuota::daily(count).into_algorithm(),
                6 => SlidingWindow::new(rate).buckets(10).into_algorithm(),
                _ => SlidingLog::new(rate).into_algorithm(),
            }
            .unwrap()
        })
    }

    #[test]
    fn wait_in_a_state_of_other_parameters_is_not_too_short() {
        let rates = [Rate::per_second(1), Rate::per_minute(1), Rate::per_hour(1)];
        for (writer, reader) in rates
            .into_iter()
            .flat_map(|writer| rates.map(|reader| (writer, reader)))
        {
            let clock = ManualClock::default();
            let memory = MemoryBackend::builder().clock(clock.clone()).build();
            let of = |rate| Policy::new("p", Gcra::new(rate).burst(10)).unwrap();
            let [writer, reading] = [writer, reader]
                .map(|rate| memory.prepare(PolicySet::new(of(rate)).unwrap()).unwrap());
            let call = |cost| [Call::from(Key::from("key")).costing(cost)];
            assert!(memory.decide_now(&writer, &call(9)).is_admitted());
            let told = wait(
                &of(reader),
                &memory.decide_now(&reading, &call(0)).statuses()[0],
                (3, 0),
            );
            let expected = memory.decide_now(&reading, &call(3)).retry_after().unwrap();
            assert!(
                told >= expected && !expected.is_zero(),
                "{told:?} for {expected:?}"
            );
        }
    }

    /// When a key is unused again says nothing of units that come evenly, where it is blocked until
    /// then.
    #[tokio::test]
    async fn wait_under_an_exception_is_not_too_short() {
        let clock = ManualClock::default();
        let memory = MemoryBackend::builder().clock(clock.clone()).build();
        let policy = Policy::new("p", Gcra::new(Rate::per_second(1)).burst(10)).unwrap();
        let set = Arc::new(
            memory
                .prepare(PolicySet::new(policy.clone()).unwrap())
                .unwrap(),
        );
        let until = throttle_core::Clock::now(&clock) + Duration::from_millis(9_500);
        let blocked = Exception {
            treatment: Treatment::Blocked,
            until,
        };
        memory
            .except(&set, 0, &Key::from("key"), Some(blocked))
            .await
            .unwrap();
        let call = |cost| [Call::from(Key::from("key")).costing(cost)];
        let look = memory.decide_now(&set, &call(0));
        let told = [1, 2, 10, 11].map(|cost| wait(&policy, &look.statuses()[0], (cost, 0)));
        let until = Duration::from_millis(9_500);
        assert_eq!(told, [until, until, until, NEVER]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What a look says against what the limit answers to a request of that cost.
        #[test]
        fn law_02_explained_wait_is_never_too_short(
            algorithm in algorithm(),
            steps in prop::collection::vec((0..30_u64, 0..40_000_u64, prop_oneof![Just(0), 0..10_u64]), 1..60),
        ) {
            let clock = ManualClock::default();
            let memory = MemoryBackend::builder().clock(clock.clone()).build();
            let policy = Policy::new("p", algorithm).unwrap();
            let set = memory.prepare(PolicySet::new(policy.clone()).unwrap()).unwrap();
            let call = |reserve| Call::from(Key::from("key")).reserving(reserve);
            for (cost, ahead, reserve) in steps {
                clock.advance(Duration::from_micros(ahead));
                let look = memory.decide_now(&set, &[call(reserve).costing(0)]);
                let told = wait(&policy, &look.statuses()[0], (cost, reserve));
                let left = look.remaining();
                let decision = memory.decide_now(&set, &[call(reserve).costing(cost)]);
                let expected = decision.retry_after().unwrap_or(NEVER);
                prop_assert!(told >= expected, "{told:?} for {expected:?}: {cost} of {left}");
                prop_assert_eq!(told.is_zero(), decision.is_admitted());
                let rounded = expected.saturating_add(Duration::from_micros(1));
                let is_window = ["fixed_window", "calendar_quota"].contains(&algorithm.name());
                if algorithm.drains() || is_window || (left, cost) == (0, 1) || expected == NEVER {
                    prop_assert!(told <= rounded, "{told:?} for {expected:?}: {cost} of {left}");
                }
                if (left, cost) == (0, 1) {
                    prop_assert_eq!(told, expected);
                }
            }
        }
    }
}
