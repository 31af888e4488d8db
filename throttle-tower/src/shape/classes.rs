//! Classes of calls: a call of a higher class passes the lower ones that wait for the same key.

// A class is the order in the queue of a key, and its reserve is room at the door of that queue. A
// backend that is asked for a turn knows nothing of either: a schedule has no burst of which a part
// could stay free.

use std::sync::Arc;

use throttle_core::{Backend, BoxBackend, ConfigError};

use super::demand::CallClass;
use super::layer::ShapeLayer;
use crate::limit::check_classes;

impl<Req, Res> ShapeLayer<Req, Res> {
    /// Lets important calls pass the others: names the classes with their reserves, the highest
    /// first, and says by a function which class a call is in. Defaults to no classes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::{Pace, Rate, ShapeLayer};
    /// use tower::{Layer, Service};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let class_of = |path: &&str| {
    ///     if path.starts_with("/export") {
    ///         "batch"
    ///     } else {
    ///         "interactive"
    ///     }
    /// };
    /// let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(5));
    /// let layer =
    ///     ShapeLayer::new(pace)?.priority([("interactive", 0), ("batch", 20)], class_of)?;
    /// let mut client = layer.layer(tower::service_fn(async |path: &str| {
    ///     Ok::<_, std::io::Error>(path.to_owned())
    /// }));
    /// client.call("/first").await?; // leaves immediately
    /// let (export, order) = (client.call("/export"), client.call("/order"));
    /// tokio::select! {
    ///     biased;
    ///     first = export => panic!("{first:?} came first, and is passed"),
    ///     first = order => assert_eq!(first?, "/order"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// * **Order.** Of the calls of a key that wait in one process, those of a higher class leave
    ///   first, and those of one class in the order in which they were made. Nothing is taken back
    ///   from a call that has left. Processes that share a store compete for turns by chance,
    ///   whatever their classes.
    /// * **Reserve.** The longest wait has room for a number of requests. A call may wait only if
    ///   its reserve still finds room after it, and else fails immediately with
    ///   [`Bound::Class`](super::Bound::Class). So the calls of a lower class do not fill the
    ///   queue, and as many requests as the reserve can pass a call before its longest wait is
    ///   over. Where no call waits, calls of each class leave immediately, and one class alone uses
    ///   the whole rate. A call that [costs](Self::cost) so much that its reserve never finds room
    ///   fails always.
    /// * **Waiting has a bound, a turn is not promised.** While higher classes use the whole rate,
    ///   a lower call waits until its longest wait or its [deadline](Self::deadline) is over, at
    ///   most 50 ms more, and then fails as any call that would wait too long. The wait that is
    ///   stated on arrival counts the calls of its class and of higher ones; it is true if no
    ///   higher one follows.
    /// * **Choose the class in the program**, never by a header that clients write. A name that is
    ///   not among the classes is in the lowest one. The function is called for each call that
    ///   costs something.
    /// * Calls of the [`shaper`](Self::shaper) itself are in the highest class.
    /// * [`max_waiting`](super::ShaperBuilder::max_waiting) counts the calls of all classes.
    /// * Over a store, a call does not pass those of another cost that the store has granted turns
    ///   already: those that are due within a round trip.
    ///
    /// # Errors
    ///
    /// Without a class, with one that has no name, with two of one name, with reserves that do not
    /// ascend, or with a reserve that leaves no room in the longest wait.
    pub fn priority<N: Into<String>, C: AsRef<str>>(
        self,
        classes: impl IntoIterator<Item = (N, u64)>,
        class_of_call: impl Fn(&Req) -> C + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        let classes: Vec<(String, u64)> = classes
            .into_iter()
            .map(|(name, reserve)| (name.into(), reserve))
            .collect();
        let policy = &BoxBackend::set(&self.shaper.schedule.prepared).policies()[0];
        let checked = check_classes(
            &classes,
            ("the longest wait", policy.algorithm().capacity()),
            1,
        );
        checked.map_err(|error| error.in_policy(policy.name()))?;
        let class = move |call: &Req| {
            let name = class_of_call(call);
            let index = classes
                .iter()
                .position(|(class, _)| class == name.as_ref())
                .unwrap_or(classes.len() - 1);
            CallClass {
                index: u16::try_from(index).unwrap_or(u16::MAX),
                reserve: classes[index].1,
            }
        };
        Ok(self.with(|functions| functions.class = Arc::new(class)))
    }
}
