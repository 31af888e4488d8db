//! Pauses that a fleet keeps together: what one process hears from the upstream holds for all of them.

// Beside the schedule, the store keeps a bucket for each key that drains by one unit in a microsecond. Who hears of a
// pause fills the bucket up to the pause's end; as long as something is in it, the key is paused. No call waits for
// this: a process looks at the bucket behind its calls, a few times a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, ConfigError, Cost, Gcra, Key, Policy, PolicySet, Rate};
use tokio::time::Instant;

use super::schedule::Schedule;
use crate::lock::lock;
use crate::time::micros;
use crate::usage::Background;

/// A process looks at a key of which it makes calls after this time.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A pause that ends later than a known one by less than this is the same one, heard in another response.
const SAME: Duration = Duration::from_millis(50);

const MAX_LONGEST: Duration = Duration::from_secs(86_400);

pub(super) struct SharedPauses<B: Backend> {
    prepared: Arc<B::Prepared>,
    longest: Duration,
    keys: Mutex<Keys>,
    background: Background,
}

#[derive(Default)]
struct Keys {
    by_key: HashMap<Key, Known>,
    /// The number of keys at which the next sweep removes those that are not used any more.
    sweep_at: usize,
}

/// What this process knows of a key.
struct Known {
    look_at: Instant,
    paused_until: Instant,
}

impl<B: Backend> SharedPauses<B> {
    pub(super) fn new(backend: &B, schedule: &str, longest: Duration, replaces: bool) -> Result<Self, ConfigError> {
        if longest < Duration::from_millis(1) || longest > MAX_LONGEST {
            let rule = "a pause of a fleet lasts 1 ms to 24 h; write the longest for which an upstream may stop it";
            return Err(ConfigError::new("share_pauses", format_args!("{longest:?}"), rule));
        }
        let bucket = Gcra::new(Rate::new(1, Duration::from_micros(1))).burst(micros(longest));
        let policy = Policy::new(&format!("{schedule}/pauses"), bucket)?;
        let policy = if replaces { policy.replace_existing() } else { policy };
        let prepared = Arc::new(backend.prepare(PolicySet::new(policy)?)?);
        Ok(Self { prepared, longest, keys: Mutex::default(), background: Background::default() })
    }

    /// Whether it is time to look at a key.
    fn is_due(&self, key: &Key, now: Instant) -> bool {
        self.with(key, now, |known| {
            let is_due = known.look_at <= now;
            if is_due {
                known.look_at = now + LOOK_EVERY;
            }
            is_due
        })
    }

    /// Whether it was not known that a key is paused until then. From here on it is.
    fn is_news(&self, key: &Key, now: Instant, until: Instant) -> bool {
        self.with(key, now, |known| {
            let is_news = until > known.paused_until + SAME;
            known.paused_until = known.paused_until.max(until);
            is_news
        })
    }

    fn with<R>(&self, key: &Key, now: Instant, change: impl FnOnce(&mut Known) -> R) -> R {
        let mut keys = lock(&self.keys);
        if !keys.by_key.contains_key(key) {
            keys.sweep(now);
        }
        change(keys.by_key.entry(key.clone()).or_insert(Known { look_at: now, paused_until: now }))
    }

    /// How long the fleet still pauses a key.
    async fn read(&self, backend: &B, key: &Key) -> Result<Duration, BackendError> {
        let looked = backend.decide(&self.prepared, &[Call::peek(key.clone())]).await?;
        Ok(looked.reset_after().min(self.longest))
    }

    /// Lets the fleet pause a key for so long, if it does not do so yet.
    async fn write(&self, backend: &B, key: &Key, until: Instant) -> Result<(), BackendError> {
        let known = self.read(backend, key).await?;
        let wanted = until.saturating_duration_since(Instant::now()).min(self.longest);
        let Some(more) = wanted.checked_sub(known).and_then(|more| Cost::new(micros(more)).ok()) else { return Ok(()) };
        // Another process may have done the same in between: the bucket holds no more than the longest pause.
        backend.decide(&self.prepared, &[Call::new(key.clone(), more)]).await.map(drop)
    }

    /// Ends the pause of a key, for processes that have not heard of it yet.
    pub(super) async fn forget(&self, backend: &B, key: &Key) -> Result<(), BackendError> {
        lock(&self.keys).by_key.remove(key);
        backend.reset(&self.prepared, 0, key).await
    }
}

impl Keys {
    /// A sweep only when the number of keys has doubled since the last one makes its cost constant per key.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, known| known.look_at > now || known.paused_until > now);
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

impl<B: Backend> Schedule<B> {
    /// No call of a key leaves before `until`, here and in the other processes of the fleet.
    pub(super) fn pause(self: &Arc<Self>, key: &Key, now: Instant, until: Instant) {
        self.paused_keys.pause(key, now, until);
        if let Some(shared) = &self.shared_pauses
            && shared.is_news(key, now, until)
        {
            self.behind_the_calls(key, move |schedule, key| async move {
                let Some(shared) = &schedule.shared_pauses else { return Ok(()) };
                shared.write(&schedule.backend, &key, until).await
            });
        }
    }

    /// Looks whether another process has heard of a pause, if it is time to.
    #[cold]
    pub(super) fn look_for_pauses(self: &Arc<Self>, shared: &SharedPauses<B>, key: &Key) {
        if shared.is_due(key, Instant::now()) {
            self.behind_the_calls(key, |schedule, key| async move {
                let Some(shared) = &schedule.shared_pauses else { return Ok(()) };
                let pause = shared.read(&schedule.backend, &key).await?;
                let now = Instant::now();
                shared.is_news(&key, now, now + pause);
                schedule.paused_keys.pause(&key, now, now + pause);
                Ok(())
            });
        }
    }

    /// Starts a step at the store that no call waits for. If it fails, each process keeps the pauses that it has heard
    /// of itself.
    fn behind_the_calls<F>(self: &Arc<Self>, key: &Key, step: impl FnOnce(Arc<Self>, Key) -> F)
    where
        F: Future<Output = Result<(), BackendError>> + Send + 'static,
    {
        let step = step(Arc::clone(self), key.clone());
        if let Some(shared) = &self.shared_pauses {
            shared.background.send(Box::pin(step), None, self.backend.can_fail());
        }
    }
}
