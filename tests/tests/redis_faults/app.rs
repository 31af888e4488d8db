//! The service under load: an axum router with the layer in it, and the outcome of each request.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::routing::get;
use axum::{Extension, Router};
use http::{Request, StatusCode};
use parking_lot::Mutex;
use throttle_core::BackendErrorKind;
use throttle_redis::{RedisBackend, RedisBuilder};
use throttle_tower::{
    FixedWindow, Header, Limit, LimitTree, OnError, Outcome, Rate, ThrottleLayer, all, limit,
};
use tower::ServiceExt;

use crate::DEADLINE;
use crate::witness::{Answer, Witnessed};

/// The rules of the limits for a store that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Open,
    Closed,
    Local,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Open, Self::Closed, Self::Local];

    const fn rule(self) -> OnError {
        match self {
            Self::Open => OnError::Open,
            Self::Closed => OnError::Closed,
            Self::Local => OnError::local(1),
        }
    }

    /// The prefix of its keys; no prefix begins with another.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}

/// The policies that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Path {
    /// One policy that never refuses.
    Wide,
    /// One policy with a budget that is soon used up.
    Tiny,
    /// Two policies with the same key, neither of which refuses.
    Both,
    /// Two policies with keys of their own, which a cluster keeps in different slots.
    Apart,
}

/// Budget of each key of [`Path::Tiny`].
pub(crate) const TINY: u64 = 15;

impl Path {
    pub(crate) const fn uri(self) -> &'static str {
        match self {
            Self::Wide => "/wide",
            Self::Tiny => "/tiny",
            Self::Both => "/both",
            Self::Apart => "/apart",
        }
    }

    /// The policies to which a request on this path is charged.
    pub(crate) const fn policies(self) -> &'static [&'static str] {
        match self {
            Self::Wide => &["wide"],
            Self::Tiny => &["tiny"],
            Self::Both => &["left", "right"],
            Self::Apart => &["near", "far"],
        }
    }

    fn limits(self) -> LimitTree {
        let of = |place: usize, count: u64, key: &str| -> Limit {
            // A window that does not end during a test, so its use is the total of all charges.
            let rate = Rate::new(count, Duration::from_secs(3650 * 86_400));
            limit(self.policies()[place], FixedWindow::new(rate)).by(Header::new(key))
        };
        match self {
            Self::Wide => of(0, 1_000_000, "x-key").into(),
            Self::Tiny => of(0, TINY, "x-key").into(),
            Self::Both => all([of(0, 1_000_000, "x-key"), of(1, 1_000_000, "x-key")]),
            Self::Apart => all([of(0, 1_000_000, "x-key"), of(1, 1_000_000, "x-other")]),
        }
    }
}

/// The outcome of a request, by the event of the layer's hook and the answer of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Admitted,
    Refused,
    /// The store did not decide.
    Degraded {
        kind: BackendErrorKind,
        /// Whether it is certain that the store charged nothing.
        uncharged: bool,
        /// The decision of the process's own share.
        local: Option<bool>,
    },
}

/// One request and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) path: Path,
    pub(crate) key: String,
    pub(crate) sent: Instant,
    /// The time that the layer added to the request.
    pub(crate) added: Duration,
    /// By how much a timer in the task of the request was late, which is no fault of the layer or
    /// the store.
    pub(crate) overslept: Duration,
    pub(crate) status: StatusCode,
    /// Whether the response carries the remaining units.
    pub(crate) reported: bool,
    pub(crate) heard: Heard,
}

impl Sample {
    pub(crate) fn is_degraded(&self) -> bool {
        matches!(self.heard, Heard::Degraded { .. })
    }

    /// The time that the layer added, beyond what the machine is to blame for.
    pub(crate) fn blamed(&self) -> Duration {
        self.added.saturating_sub(self.overslept)
    }

    /// When the decision was made.
    pub(crate) fn decided(&self) -> Instant {
        self.sent + self.added
    }
}

tokio::task_local! {
    /// The trip of the request that runs in this task.
    pub(crate) static TRIP: Trip;
}

/// Recorded along the way of a request.
#[derive(Clone, Default)]
pub(crate) struct Trip(Arc<Stops>);

#[derive(Default)]
struct Stops {
    heard: Mutex<Vec<Event>>,
    answers: Mutex<Vec<Answer>>,
    handled: OnceLock<Instant>,
}

/// The event of the layer's hook about a request.
#[derive(Clone, Copy, Debug)]
enum Event {
    Admitted,
    Refused,
    Degraded {
        kind: BackendErrorKind,
        uncharged: Option<bool>,
        local: Option<bool>,
    },
}

impl Trip {
    pub(crate) fn answered(&self, answer: Answer) {
        self.0.answers.lock().push(answer);
    }

    /// Combines the event and the answer of the request, which must agree.
    fn heard(&self) -> Heard {
        let (heard, answers) = (self.0.heard.lock(), self.0.answers.lock());
        let (&[event], &[answer]) = (heard.as_slice(), answers.as_slice()) else {
            panic!("one request was decided by {answers:?}, and reported as {heard:?}");
        };
        match (event, answer) {
            (Event::Admitted, Answer::Decided) => Heard::Admitted,
            (Event::Refused, Answer::Decided) => Heard::Refused,
            (
                Event::Degraded {
                    kind,
                    uncharged: said,
                    local,
                },
                Answer::Failed {
                    kind: failed,
                    uncharged,
                },
            ) if kind == failed && said.is_none_or(|said| said == uncharged) => Heard::Degraded {
                kind,
                uncharged,
                local,
            },
            _ => panic!("the backend answered {answer:?}, and the layer reported {event:?}"),
        }
    }
}

/// One service in one mode.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) mode: Mode,
    pub(crate) backend: RedisBackend,
    router: Router,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl App {
    pub(crate) fn new(mode: Mode, backend: RedisBuilder) -> Self {
        let backend = backend
            .prefix(mode.prefix())
            .readable_keys()
            .build()
            .expect("options within bounds");
        let router = [Path::Wide, Path::Tiny, Path::Both, Path::Apart]
            .into_iter()
            .fold(Router::new(), |router, path| {
                router.route(path.uri(), get(handle).layer(layer(path, mode, &backend)))
            });
        Self {
            mode,
            backend,
            router,
            samples: Arc::default(),
        }
    }

    /// Sends one request and records its outcome.
    pub(crate) async fn send(&self, path: Path, key: String) {
        let trip = Trip::default();
        let other = format!("other-{key}");
        let request = Request::get(path.uri())
            .header("x-key", &key)
            .header("x-other", other)
            .extension(trip.clone());
        let request = request.body(Body::empty()).expect("a request");
        let router = self.router.clone();
        let sent = Instant::now();
        let responding = TRIP.scope(trip.clone(), async {
            let response = router
                .oneshot(request)
                .await
                .expect("a router does not fail");
            let left = trip.0.handled.get().copied();
            (response, left.unwrap_or_else(Instant::now))
        });
        let timer = async {
            tokio::time::sleep(DEADLINE).await;
            sent.elapsed().saturating_sub(DEADLINE)
        };
        let ((response, left), overslept) = tokio::join!(responding, timer);
        let heard = trip.heard();
        let (status, reported) = (
            response.status(),
            response.headers().contains_key("ratelimit"),
        );
        let sample = Sample {
            path,
            key,
            sent,
            added: left.duration_since(sent),
            overslept,
            status,
            reported,
            heard,
        };
        self.samples.lock().push(sample);
    }

    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().clone()
    }

    /// Whether the store has decided a request since then.
    pub(crate) fn has_decided_since(&self, since: Instant) -> bool {
        self.samples
            .lock()
            .iter()
            .rev()
            .any(|sample| sample.sent >= since && !sample.is_degraded())
    }
}

async fn handle(Extension(trip): Extension<Trip>) -> &'static str {
    let _ = trip.0.handled.set(Instant::now());
    tokio::time::sleep(Duration::from_millis(1)).await;
    "hello"
}

fn layer(path: Path, mode: Mode, backend: &RedisBackend) -> ThrottleLayer<Witnessed> {
    ThrottleLayer::builder(path.limits())
        .on_error(mode.rule())
        .on_decision(|event| {
            let heard = match (event.outcome, event.degraded()) {
                (Outcome::Admitted, None) => Event::Admitted,
                (Outcome::Refused, None) => Event::Refused,
                (Outcome::Admitted | Outcome::Refused, Some(kind)) => {
                    let local = matches!(event.outcome, Outcome::Admitted);
                    Event::Degraded {
                        kind,
                        uncharged: None,
                        local: Some(local),
                    }
                }
                (Outcome::FailedOpen(error) | Outcome::FailedClosed(error), _) => Event::Degraded {
                    kind: error.kind(),
                    uncharged: Some(error.is_uncharged()),
                    local: None,
                },
                other => panic!("the load sends no such request: {other:?}"),
            };
            event
                .parts
                .extensions
                .get::<Trip>()
                .expect("put there before")
                .0
                .heard
                .lock()
                .push(heard);
        })
        .backend(Witnessed(backend.clone()))
        .build()
        .expect("limits within bounds, and what happens on errors is said")
}
