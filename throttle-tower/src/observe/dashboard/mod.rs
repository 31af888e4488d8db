//! The page of a layer, and its `data.json`.

mod board;
mod buckets;
mod changes;
mod data;
mod document;
mod events;
mod flows;
mod rendered;
mod router;
mod shown;
#[cfg(test)]
mod tests;
mod tight_list;
mod tightest;

use std::sync::Arc;

use axum::Router;
use throttle_core::Backend;

use crate::ThrottleLayer;
use crate::observe::offenders::tracker::Tracker;
use board::Board;
use rendered::Rendered;
use shown::Shown;

impl<B: Backend> ThrottleLayer<B> {
    /// Returns this layer and a page that shows what it does: which limits admit and refuse, what
    /// is left for the tightest keys, whether the store decides, what waits, and which keys are
    /// refused most. It shows requests through the returned layer, its clones and its services. If
    /// those are all gone, the page says so.
    ///
    /// Nest the router behind your own authentication: the page has none, and shows your limits and
    /// your load to every reader. Keys are shown as digests, unless
    /// [`track_offenders_as`](Self::track_offenders_as) is set before.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use http::{Request, StatusCode};
    /// use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
    /// use tower::ServiceExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
    /// let (throttle, page) = ThrottleLayer::new(per_ip)?.dashboard();
    /// let app = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(throttle)
    ///     .nest_service("/limits", page); // In production: page.layer(authentication).
    /// for path in ["/limits", "/limits/data.json"] {
    ///     let response = app.clone().oneshot(Request::get(path).body(String::new())?).await?;
    ///     assert_eq!(response.status(), StatusCode::OK);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Nest it as a service, so that `/limits/` shows the page as `/limits` does, and after
    /// `layer`, as here: a router inside the layer has its own requests limited and counted. The
    /// page is one document that loads nothing else, and its content security policy allows nothing
    /// else. It updates itself every second, and reconnects by itself when the server restarts. It
    /// shows this process since its start, not other processes that use the same store.
    ///
    /// With the page, a request costs less than a microsecond more, and each policy takes 2.5 KB.
    /// Requests wait for no reader. A second call on the same layer returns a new page, and the one
    /// before says that nothing reports to it any more. Where rules replace the limits, the page
    /// follows: it starts anew if a name or a capacity has changed, or a limit is enforced that was
    /// audited.
    ///
    /// # `data.json`
    ///
    /// Next to the page, `data.json` has what it shows, and `events` sends the same every second as
    /// server-sent events. An event stream ends after 15 events and the browser reconnects, so that
    /// an open page does not keep a server from shutting down. The numbers change once a second.
    /// Fields may be added in later versions.
    ///
    /// | field | meaning |
    /// |---|---|
    /// | `service` | the name that [`dashboard_of`](Self::dashboard_of) sets, or null |
    /// | `reporting` | whether the layer, a clone or a service of it is left |
    /// | `running_seconds` | whole seconds since `dashboard` was called |
    /// | `outcomes` | requests since then, by [label](crate::Outcome::label) |
    /// | `requests` | `admitted` and `refused`: requests that were passed on and that were not, in each complete second of the last 120, oldest first; fewer after the start |
    /// | `binding` | the policy that refused most requests as the [binding](crate::Event::binding) one in the last two minutes; if none did, the one with the least left most often; or null |
    /// | `policies` | in the order given |
    /// | `.name` | |
    /// | `.audited` | whether it is [audited](crate::Limit::audit): then `.refused` are requests that it would have refused |
    /// | `.admitted`, `.refused` | requests that it admitted (and that were passed on) or refused, like those of `requests`. A policy that is skipped does neither |
    /// | `.binding` | `refused` and `admitted`: requests of the last two minutes of which it was the binding policy |
    /// | `.queued` | requests that wait for it now |
    /// | `.longest_wait_ms` | the longest that a request has waited in its queue, of those that left it in the last two minutes |
    /// | `tightest` | at most ten keys with the smallest share of a limit left, each as of its last request |
    /// | `.policy`, `.key` | `key` is a digest of 16 hexadecimal digits, `missing` for the requests without a key, or `all` for the key of [`Constant`](crate::Constant) |
    /// | `.left`, `.of` | units that are left, and that an unused key has |
    /// | `.resets_in_ms` | when all of them are left again, if no request comes |
    /// | `decided_by.now` | what decided in the latest second with requests: `store`, `local` (this process, by its [share](crate::OnError::Local)), `open` or `closed`; of several, the last of these; null before the first request |
    /// | `decided_by.decisions` | decisions of the last two minutes by each |
    /// | `decided_by.changes` | the last 20 times that this changed from one second to another, newest first: `seconds_ago`, `from` (null at first), `to` and `why`, the [label](throttle_core::BackendErrorKind::label) of the store's error or null |
    /// | `rules_changes` | the last 20 times that [rules](crate::rules) replaced the limits, newest first, in seconds ago |
    /// | `store` | `answers`, `failures` and `slowest_ms`: decisions of the last two minutes that had to be waited for |
    /// | `permits` | of each limit on [requests in flight](crate::InFlight): `name`, `taken` now, `most_taken` at once and requests `refused` in the last two minutes |
    /// | `keys_held` | keys in memory now, or null if the backend is elsewhere |
    /// | `offenders` | the ten keys that were [refused most](Self::offenders): `policy`, `key` (the same digest as above), `refused`, and `shown`, their text or null |
    /// | `candidates` | of each [candidate](Self::candidate) that the layer has: `name`, and requests by what it would have done: `both_admit`, `both_refuse`, `would_refuse`, `would_admit`, `not_decided` |
    ///
    /// The last two minutes are at least 120 seconds and at most 130.
    pub fn dashboard<S: Clone + Send + Sync + 'static>(self) -> (Self, Router<S>) {
        self.page(|rendered| rendered)
    }

    /// Returns what [`dashboard`](Self::dashboard) returns, for an operator of several services:
    /// the page is headed by this name of the service, and `data.json` has it. The other one is
    /// headed by the host under which a browser finds it.
    ///
    /// ```
    /// # use axum::Router;
    /// # use http::Request;
    /// # use http_body_util::BodyExt;
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limits = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
    /// let (throttle, page): (_, Router) = ThrottleLayer::new(limits)?.dashboard_of("checkout");
    /// let data = page
    ///     .oneshot(Request::get("/data.json").body(String::new())?)
    ///     .await?
    ///     .into_body()
    ///     .collect()
    ///     .await?;
    /// let data: serde_json::Value = serde_json::from_slice(&data.to_bytes())?;
    /// assert_eq!(data["service"], "checkout");
    /// # drop(throttle);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dashboard_of<S: Clone + Send + Sync + 'static>(
        self,
        service: impl Into<String>,
    ) -> (Self, Router<S>) {
        self.page(|rendered| rendered.of_service(service.into()))
    }

    fn page<S: Clone + Send + Sync + 'static>(
        self,
        head: impl FnOnce(Rendered) -> Rendered,
    ) -> (Self, Router<S>) {
        let tracker = self
            .tracker()
            .unwrap_or_else(|| Arc::new(Tracker::new(None)));
        let (of, shown) = (self.observed(), Arc::<Shown<Board>>::default());
        let board = Arc::new(Board::new(of.policies, &of.permits, tracker, &shown));
        board.note_candidates(&self.observers());
        shown.add(Arc::clone(&board));
        // The page keeps no layer, so that it knows whether one is left that reports to the board.
        let page = router::router(head(Rendered::new(shown, Board::offenders)));
        // The board tells the tracker.
        (
            self.no_longer_observed_by::<Arc<Tracker>>()
                .observed_by(board),
            page,
        )
    }
}
