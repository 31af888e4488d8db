//! The keys that a layer refuses most, in a list of bounded size.

mod offender;
mod recent;
#[cfg(test)]
mod tests;
pub(super) mod tracker;

use std::sync::Arc;

use throttle_core::{Backend, Key};

use crate::throttle::ThrottleLayer;
use tracker::Tracker;

pub use offender::Offender;

impl<B: Backend> ThrottleLayer<B> {
    /// Counts which keys are refused most, for [`offenders`](Self::offenders). Clones that are made
    /// later, and services of the layer, count together. Defaults to not counting.
    ///
    /// The list shows keys as digests under a secret of this layer: the same key has the same
    /// digest until the process ends, and another one in every other process. To show keys as text,
    /// use [`track_offenders_as`](Self::track_offenders_as).
    ///
    /// Only refusals cost anything: a few hundred instructions each, and about 40 µs for the one
    /// that starts a new minute. The counts take 230 kB, whatever clients send. A refusal that
    /// finds the counts in use is not counted, so that it does not wait: see
    /// [`uncounted_refusals`](Self::uncounted_refusals).
    pub fn track_offenders(self) -> Self {
        self.observed_by(Arc::new(Tracker::new(None)))
    }

    /// Counts like [`track_offenders`](Self::track_offenders), and shows keys as the text that
    /// `show` returns, cut to 64 bytes. Keys for which `show` returns `None` are shown as digests
    /// alone.
    ///
    /// `show` gets the name of the policy that refused, and the key. The layer keeps its text and
    /// shows it to whoever can read the list, so return `None` for a key that is a secret, such as
    /// an API key. `show` is called on the task of a refused request, once for each key that enters
    /// the list and again in the next minute, so it must return quickly.
    ///
    /// ```
    /// use throttle_core::KeyPart;
    /// # use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("per-ip", Gcra::new(Rate::per_second(1))).by(ClientIp::peer());
    /// let throttle = ThrottleLayer::new(limits)?.track_offenders_as(|policy, key| {
    ///     match (policy, key.expose_parts().next()?) {
    ///         ("per-ip", KeyPart::Network(address, _)) => Some(address.to_string()),
    ///         _ => None,
    ///     }
    /// });
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn track_offenders_as(
        self,
        show: impl Fn(&str, &Key) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.observed_by(Arc::new(Tracker::new(Some(Arc::new(show)))))
    }

    /// Returns the keys that were refused most, the most refused first: at most `n`, and at
    /// most 128. Empty unless [`track_offenders`](Self::track_offenders) is set.
    ///
    /// It counts refusals with 429 by the policy that [refused](crate::Event::binding), in the
    /// running minute and in the one before: at least the last minute, at most the last two.
    /// Minutes start when tracking is set. After that time a key that is refused no more is not in
    /// the list.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limits =
    ///     limit("per-key", Gcra::new(Rate::per_hour(1)).burst(1)).by(Header::new("x-api-key"));
    /// let throttle = ThrottleLayer::new(limits)?.track_offenders();
    /// let service = throttle.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(()))
    /// }));
    /// for key in ["ada", "bob", "ada", "bob", "bob"] {
    ///     service
    ///         .clone()
    ///         .oneshot(Request::get("/").header("x-api-key", key).body(())?)
    ///         .await?;
    /// }
    /// let offenders = throttle.offenders(20);
    /// assert_eq!(
    ///     offenders
    ///         .iter()
    ///         .map(|offender| offender.refused)
    ///         .collect::<Vec<_>>(),
    ///     [2, 1]
    /// );
    /// assert!(offenders[0].to_string().starts_with("per-key#"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn offenders(&self, n: usize) -> Vec<Offender> {
        self.tracker().map_or_else(Vec::new, |tracker| {
            tracker.list(n, &self.observed().policies)
        })
    }

    /// Returns how many refusals [`offenders`](Self::offenders) has not counted since tracking was
    /// set, because another refusal was being counted, or the list read, at that instant. That hits
    /// all keys alike, so it hardly changes their order.
    #[must_use]
    pub fn uncounted_refusals(&self) -> u64 {
        self.tracker().map_or(0, |tracker| tracker.uncounted())
    }

    /// What tracks offenders, if anything does.
    pub(super) fn tracker(&self) -> Option<Arc<Tracker>> {
        self.observers().find().cloned()
    }
}
