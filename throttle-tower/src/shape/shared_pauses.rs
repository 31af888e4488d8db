//! Pauses that a fleet keeps together: what one process hears from the upstream holds for all of
//! them.

// The store also keeps a bucket for each key that drains by one unit in a microsecond. A process
// that hears of a pause fills the bucket up to the pause's end. As long as something is in it, the
// key is paused. No call waits for this: a process reads the bucket after calls have left, a few
// times a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::backend::{BoxPrepared, Call, KeyStep, Receipt};
use throttle_core::{
    Backend, BackendError, BoxBackend, ConfigError, Cost, Gcra, Key, Policy, PolicySet, PolicyTree,
    Rate,
};
use tokio::time::{Instant, sleep};

use crate::jitter;
use crate::time::micros;
use crate::usage::Background;

/// The index of the pauses in the set.
const PAUSES_AT: usize = 1;

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(86_400);

/// For so long at most, one process alone writes the pauses of a key: much longer than a few round
/// trips to the store.
const TURN: Duration = Duration::from_millis(250);

/// A process that has no turn tries again within this time, so often.
const RETRY: Duration = Duration::from_millis(40);
const ATTEMPTS: u32 = 32;

/// A pause that is shorter than it was written by less than this is as long.
const EXACT: Duration = Duration::from_millis(1);

pub(super) struct SharedPauses {
    backend: BoxBackend,
    prepared: Arc<BoxPrepared>,
    pub(super) longest: Duration,
    /// What a look finds that began before the last reset is ignored.
    pub(super) resets: AtomicU64,
    /// Runs the steps that no call waits for.
    pub(super) background: Background,
}

impl SharedPauses {
    /// What is added to the name of a schedule.
    pub(super) const TURNS: &str = "/telling";
    const PAUSES: &str = "/pauses";

    pub(super) fn new(
        backend: BoxBackend,
        schedule: &str,
        longest: Duration,
    ) -> Result<Self, ConfigError> {
        if longest < SHORTEST || longest > LONGEST {
            let rule = "a pause of a fleet lasts 1 ms to 24 h; write the longest for which an \
                upstream may stop it";
            return Err(ConfigError::new(
                "share_pauses",
                format_args!("{longest:?}"),
                rule,
            ));
        }
        let policy = |suffix: &str, bucket| {
            Policy::new(&format!("{schedule}{suffix}"), bucket).map(PolicyTree::from)
        };
        let turns = policy(Self::TURNS, Gcra::new(Rate::new(1, TURN)).burst(1))?;
        let pauses = policy(
            Self::PAUSES,
            Gcra::new(Rate::new(1, Duration::from_micros(1))).burst(micros(longest)),
        )?;
        let set = PolicySet::new(PolicyTree::All(vec![turns, pauses]))?;
        Ok(Self {
            prepared: Arc::new(backend.prepare(set)?),
            backend,
            longest,
            resets: AtomicU64::new(0),
            background: Background::default(),
        })
    }

    /// How long the fleet still pauses a key.
    pub(super) async fn read(&self, key: &Key) -> Result<Duration, BackendError> {
        let decision = self
            .backend
            .decide(&self.prepared, &[Call::SKIP, Call::peek(key.clone())])
            .await?;
        let bucket = &decision.statuses()[PAUSES_AT];
        // Keys for which a full store has no room share a bucket.
        Ok(if bucket.is_overflow() {
            Duration::ZERO
        } else {
            bucket.reset_after()
        })
    }

    /// Lets the fleet pause a key until then, if it does not do so yet.
    ///
    /// What is missing is filled in by one process at a time, or several that hear of one pause
    /// would add them up. Returns whether it does so now.
    pub(super) async fn write(&self, key: &Key, until: Instant) -> Result<bool, BackendError> {
        let Self {
            backend, prepared, ..
        } = self;
        let turn = [Call::from(key.clone()), Call::SKIP];
        let wanted = || {
            let left = until.saturating_duration_since(Instant::now());
            left.min(self.longest)
        };
        for _ in 0..ATTEMPTS {
            if self.read(key).await? + EXACT > wanted() {
                return Ok(true);
            }
            let decision = backend.decide(prepared, &turn).await?;
            if let Some(receipt) = Receipt::of(&decision, &turn) {
                let kept = self.read(key).await?;
                if let Ok(more) = Cost::new(micros(wanted().saturating_sub(kept))) {
                    let fill = [Call::SKIP, Call::new(key.clone(), more)];
                    backend.decide(prepared, &fill).await?;
                }
                backend.settle(prepared, receipt.actual(0)).await?;
                return Ok(true);
            }
            if backend.can_fail() {
                sleep(jitter::within(RETRY)).await;
            }
        }
        Ok(false)
    }

    /// Ends the pause of a key at the store, for processes that have not heard of it yet.
    pub(super) async fn forget(&self, key: &Key) -> Result<(), BackendError> {
        self.resets.fetch_add(1, Ordering::AcqRel);
        let reset = KeyStep::Reset(key.clone());
        self.backend.run(&self.prepared, PAUSES_AT, reset).await?;
        Ok(())
    }
}
