//! The page of layers, and its `data.json`.

mod board;
mod changes;
mod data;
mod flows;
mod observer;
mod rendered;
mod router;
mod rows;
#[cfg(test)]
mod tests;
mod tightest;

use std::fmt;
use std::sync::{Arc, Mutex};

use axum::Router;

use crate::{Backend, Candidate, LayerInfo, Observer, Offenders};
use board::Board;
use observer::PageObserver;
use rendered::{FlipsOf, PageData};

/// A page that shows what layers do: which limits admit and refuse, what is left for the tightest
/// keys, whether the store decides, what waits, and which keys are refused most. Hand it over with
/// [`observe`](crate::ThrottleBuilder::observe), to as many layers as it is to show. Clones are the
/// same page.
///
/// Nest its [router](Self::router) behind your own authentication: the page has none, and shows
/// your limits and your load to every reader. Keys are shown as digests, unless it has
/// [offenders](Self::offenders) of the program.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use http::{Request, StatusCode};
/// use throttle_tower::{ClientIp, Gcra, Page, Rate, ThrottleLayer, limit};
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
/// let page = Page::new();
/// let throttle = ThrottleLayer::builder(per_ip).observe(page.clone()).build()?;
/// let app = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(throttle)
///     // In production: page.router().layer(authentication).
///     .nest_service("/limits", page.router());
/// for path in ["/limits", "/limits/data.json"] {
///     let response = app.clone().oneshot(Request::get(path).body(String::new())?).await?;
///     assert_eq!(response.status(), StatusCode::OK);
/// }
/// # Ok(())
/// # }
/// ```
///
/// With the page, a request costs less than a microsecond more, and each limit takes 2.5 KB.
/// Requests wait for no reader. Where limits are replaced, the page goes on: limits count on by
/// their names, and those that are gone are no longer shown.
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
/// | `service` | the name that [`named`](Self::named) gives, or null |
/// | `reporting` | whether a layer that reports to the page, or a service of it, is left |
/// | `running_seconds` | whole seconds since the page was made |
/// | `outcomes` | requests since then, by [label](crate::Outcome::label) |
/// | `requests` | `admitted` and `refused`: requests that were passed on and that were not, in each complete second of the last 120, oldest first; fewer after the start |
/// | `binding` | the policy that refused most requests as the [binding](crate::Event::binding) one in the last two minutes; if none did, the one with the least left most often; or null |
/// | `policies` | the limits on a rate, in the order given. Limits of one name count together, also those of several layers |
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
/// | `rules_changes` | the last 20 times that limits were replaced, for example by [rules](https://docs.rs/tower-throttle-rules), newest first, in seconds ago |
/// | `store` | `answers`, `failures` and `slowest_ms`: decisions of the last two minutes that had to be waited for |
/// | `permits` | of each limit on [requests in flight](crate::InFlight): `name`, `taken` now, `most_taken` at one time and requests `refused` in the last two minutes |
/// | `keys_held` | keys that the stores of the layers hold in this process, or null if they are elsewhere. A store that two layers share counts twice |
/// | `offenders` | the ten keys that were [refused most](crate::Offenders): `policy`, `key` (the same digest as above), `refused`, and `shown`, their text or null |
/// | `candidates` | of each [candidate](Self::candidate) of the page: `name`, and requests by what it would have done: `both_admit`, `both_refuse`, `would_refuse`, `would_admit`, `not_decided` |
///
/// The last two minutes are at least 120 seconds and at most 130.
#[derive(Clone)]
pub struct Page {
    board: Arc<Board>,
    offenders: Offenders,
    /// Whether the list of offenders is the program's, which hands it to the layers.
    has_given_offenders: bool,
    candidates: Vec<(String, Arc<FlipsOf>)>,
    service: Option<String>,
}

impl Page {
    /// Makes a page that is headed by the host under which a browser finds it.
    #[must_use]
    pub fn new() -> Self {
        let offenders = Offenders::new();
        Self {
            board: Arc::new(Board::new(offenders.clone())),
            offenders,
            has_given_offenders: false,
            candidates: Vec::new(),
            service: None,
        }
    }

    /// Makes a page for an operator of several services: it is headed by this name of the service,
    /// and `data.json` has it.
    ///
    /// ```
    /// # use axum::Router;
    /// # use http::Request;
    /// # use http_body_util::BodyExt;
    /// # use throttle_tower::Page;
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let page: Router = Page::named("checkout").router();
    /// let data = page
    ///     .oneshot(Request::get("/data.json").body(String::new())?)
    ///     .await?
    ///     .into_body()
    ///     .collect()
    ///     .await?;
    /// let data: serde_json::Value = serde_json::from_slice(&data.to_bytes())?;
    /// assert_eq!(data["service"], "checkout");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn named(service: impl Into<String>) -> Self {
        Self {
            service: Some(service.into()),
            ..Self::new()
        }
    }

    /// Shows the keys of this list, by its texts and digests, instead of one of the page's own.
    /// Hand the list to the layers, too. Call it before the page is cloned or handed over: the page
    /// begins anew.
    ///
    /// ```
    /// use throttle_tower::{Constant, Gcra, Offenders, Page, Rate, ThrottleLayer, limit};
    ///
    /// let offenders = Offenders::new().showing(|_, key| Some(format!("{key:?}")));
    /// let page = Page::new().offenders(&offenders);
    /// let limits = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
    /// let throttle = ThrottleLayer::builder(limits)
    ///     .observe(page.clone())
    ///     .observe(offenders)
    ///     .build()?;
    /// # let _ = throttle;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    #[must_use]
    pub fn offenders(self, offenders: &Offenders) -> Self {
        Self {
            board: Arc::new(Board::new(offenders.clone())),
            offenders: offenders.clone(),
            has_given_offenders: true,
            ..self
        }
    }

    /// Shows what a candidate would have done. Hand the candidate to the layers, too. Call it
    /// before [`router`](Self::router).
    #[must_use]
    pub fn candidate<C: Backend>(mut self, candidate: &Candidate<C>) -> Self {
        let shown = candidate.clone();
        let name = shown.name().to_owned();
        self.candidates
            .push((name, Arc::new(move || shown.flips())));
        self
    }

    /// Returns the routes of the page.
    ///
    /// Nest it as a service, so that `/limits/` shows the page as `/limits` does, and after
    /// `layer`: a router inside the layer has its own requests limited and counted. The page is one
    /// document that loads nothing else, and its content security policy allows nothing else. It
    /// updates itself every second, and reconnects by itself when the server restarts. It shows
    /// this process since the page was made, not other processes that use the same store.
    pub fn router<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        router::router(self.rendered())
    }

    fn rendered(&self) -> PageData {
        PageData {
            board: Arc::clone(&self.board),
            offenders: self.offenders.clone(),
            candidates: self.candidates.clone(),
            service: self.service.clone(),
            latest: Mutex::default(),
        }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

impl Observer for Page {
    fn built(&self, layer: &LayerInfo, former: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(PageObserver {
            board: Arc::clone(&self.board),
            offenders: (!self.has_given_offenders).then(|| self.offenders.clone()),
            rows: self.board.add(layer, former.is_some()),
        }))
    }
}
