//! The keys that a layer refuses most, in a list of bounded size.

mod offender;
mod recent;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use throttle_core::{Key, PolicyName};
use tokio::time::Instant;

use crate::event::{Event, Observer, Outcome};
use crate::lock::{lock, try_lock};
use recent::{LimitKey, Recent};

pub use offender::Offender;

/// Counts which keys are refused most. Hand it over with
/// [`observe`](crate::ThrottleBuilder::observe). Clones are the same list, and the layers that
/// share one count together.
///
/// The list shows keys as digests under a secret of its own: the same key has the same digest until
/// the process ends, and another one in every other list and process. To show keys as text, use
/// [`showing`](Self::showing).
///
/// Only refusals cost anything: a few hundred instructions each, and about 40 µs for the one that
/// starts a new minute. The counts take 230 kB, whatever clients send. A refusal that finds the
/// counts in use is not counted, so that it does not wait: see [`uncounted`](Self::uncounted).
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Gcra, Header, Offenders, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limits =
///     limit("per-key", Gcra::new(Rate::per_hour(1)).burst(1)).by(Header::new("x-api-key"));
/// let offenders = Offenders::new();
/// let throttle = ThrottleLayer::builder(limits).observe(offenders.clone()).build()?;
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// for key in ["ada", "bob", "ada", "bob", "bob"] {
///     service
///         .clone()
///         .oneshot(Request::get("/").header("x-api-key", key).body(())?)
///         .await?;
/// }
/// let listed = offenders.list(20);
/// assert_eq!(
///     listed
///         .iter()
///         .map(|offender| offender.refused)
///         .collect::<Vec<_>>(),
///     [2, 1]
/// );
/// assert!(listed[0].to_string().starts_with("per-key#"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Offenders(Arc<Refusals>);

/// Digests of keys and what the program's function shows.
struct Refusals {
    show: Option<Box<Show>>,
    secret: RandomState,
    recent: Mutex<Recent>,
    uncounted: AtomicU64,
}

/// Shows a key of a limit as text.
type Show = dyn Fn(&str, &Key) -> Option<String> + Send + Sync;

/// Bytes that are kept of a key's text.
const MAX_TEXT: usize = 64;

impl Offenders {
    /// Makes a list that shows keys as digests alone.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None)
    }

    /// Shows keys as the text that `show` returns, cut to 64 bytes. Keys for which `show` returns
    /// `None` are shown as digests alone. Call it before the list is cloned or handed over: it
    /// begins anew.
    ///
    /// `show` gets the name of the limit that refused, and the key. The list keeps its text and
    /// shows it to all its readers, so return `None` for a key that is a secret, such as an API
    /// key. `show` is called on the task of a refused request, once for each key that enters the
    /// list and again in the next minute, so it must return quickly.
    ///
    /// ```
    /// use throttle_core::KeyPart;
    /// use throttle_tower::Offenders;
    ///
    /// let offenders = Offenders::new().showing(|limit, key| {
    ///     match (limit, key.expose_parts().next()?) {
    ///         ("per-ip", KeyPart::Network(address, _)) => Some(address.to_string()),
    ///         _ => None,
    ///     }
    /// });
    /// assert!(offenders.list(20).is_empty());
    /// ```
    #[must_use]
    pub fn showing(
        self,
        show: impl Fn(&str, &Key) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self::with(Some(Box::new(show)))
    }

    /// Returns the keys that were refused most, the most refused first: at most `n`, and at
    /// most 128.
    ///
    /// It counts refusals with 429 by the limit that [refused](crate::Event::binding), in the
    /// running minute and in the one before: at least the last minute, at most the last two.
    /// Minutes start when the list is made. After that time a key that is refused no more is not in
    /// the list.
    #[must_use]
    pub fn list(&self, n: usize) -> Vec<Offender> {
        lock(&self.0.recent).list(n, Instant::now())
    }

    /// Returns how many refusals were not counted so far, because another refusal was being
    /// counted, or the list read, at that instant. That hits all keys alike, so it hardly changes
    /// their order.
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.0.uncounted.load(Ordering::Relaxed)
    }

    /// Returns the digest of a key in this list, to find one that was seen elsewhere. `None` for
    /// the key that requests without one share.
    ///
    /// ```
    /// use throttle_tower::{Key, Offenders};
    ///
    /// let offenders = Offenders::new();
    /// let ada = Key::from("ada");
    /// assert_eq!(offenders.digest(&ada), offenders.clone().digest(&ada));
    /// assert_ne!(offenders.digest(&ada), Offenders::new().digest(&ada));
    /// ```
    #[must_use]
    pub fn digest(&self, key: &Key) -> Option<u64> {
        (*key != Key::missing()).then(|| self.0.secret.hash_one(key))
    }

    fn with(show: Option<Box<Show>>) -> Self {
        Self(Arc::new(Refusals {
            show,
            secret: RandomState::new(),
            recent: Mutex::new(Recent::new(Instant::now())),
            uncounted: AtomicU64::new(0),
        }))
    }

    /// Counts one refusal of a key, unless the counts are in use.
    fn count(&self, limit: &PolicyName, key: &Key) {
        let Refusals {
            recent,
            show,
            uncounted,
            ..
        } = &*self.0;
        let refused = LimitKey {
            limit: limit.clone(),
            digest: self.digest(key),
        };
        let now = Instant::now();
        let Some(lacks_text) = try_lock(recent).map(|mut recent| recent.add(&refused, now)) else {
            uncounted.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if lacks_text && let Some(show) = show {
            // Not under the lock, because the function may read the list. If the lock is not free
            // afterwards, the key's next refusal calls it again.
            let text = show(limit.as_str(), key);
            if let Some(mut recent) = try_lock(recent) {
                recent.set_text(&refused, text.map(cut));
            }
        }
    }
}

fn cut(mut text: String) -> String {
    let is_end = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=MAX_TEXT.min(text.len())).rfind(is_end);
    text.truncate(end.unwrap_or(0));
    text
}

impl Default for Offenders {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Offenders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offenders").finish_non_exhaustive()
    }
}

impl Observer for Offenders {
    fn decided(&self, event: &Event<'_>) {
        if let Outcome::Refused = event.outcome
            && let Some(limit) = event.binding()
            && let Some(key) = limit.units().and_then(|units| units.key)
        {
            self.count(&limit.info.name, key);
        }
    }
}

#[cfg(all(test, feature = "dashboard"))]
impl Offenders {
    pub(in crate::observe) fn hold_lock(&self) -> impl Sized + use<'_> {
        lock(&self.0.recent)
    }
}
