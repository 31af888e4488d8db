//! Decides requests by the library itself: the layer, its memory store, and a clock that shows the
//! log's time.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Empty;
use throttle_rules::RulesError;
use throttle_tower::extract::MatchedRoute;
use throttle_tower::{
    Event, LimitUnits, ManualClock, MemoryBackend, Outcome, Throttle, ThrottleLayer, Timestamp,
};
use tower::{Layer, Service};

use crate::entry::Entry;
use crate::rule_file::RuleFile;

/// The rules of a file, at work.
pub struct Run {
    clock: ManualClock,
    status: Arc<AtomicU16>,
    service: Throttle<AsLogged, MemoryBackend<ManualClock>>,
    /// What the layer's hook has noted of the latest request.
    noted: Arc<Mutex<Decided>>,
    decided: Decided,
}

/// What was decided about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    pub is_refused: bool,
    /// By the place of each limit among those of the file: whether it would have refused the
    /// request, alone. `None` if it does not apply.
    pub limits: Vec<Option<bool>>,
    /// A key was missing that a limit requires.
    pub lacks_key: bool,
    /// The store was full, so that keys shared a budget.
    pub is_overflow: bool,
}

impl Run {
    /// More keys than a log of a machine has.
    const KEYS: usize = 1 << 26;

    /// # Errors
    ///
    /// If the limits cannot be built.
    pub fn new(file: &RuleFile) -> Result<Self, RulesError> {
        let clock = ManualClock::default();
        let backend = MemoryBackend::builder()
            .max_keys(Self::KEYS)
            .clock(clock.clone())
            .build();
        let noted: Arc<Mutex<Decided>> = Arc::default();
        let (names, to) = (
            file.limits
                .iter()
                .map(|limit| limit.name.clone())
                .collect::<Vec<_>>(),
            Arc::clone(&noted),
        );
        let program = ThrottleLayer::builder(())
            .backend(backend)
            .on_warning(|_| {})
            .on_decision(move |event| note(event, &names, &mut lock(&to)));
        let (layer, _) = file.rules.layer_with(program)?;
        let status: Arc<AtomicU16> = Arc::default();
        let service = layer.layer(AsLogged(Arc::clone(&status)));
        Ok(Self {
            clock,
            status,
            service,
            noted,
            decided: Decided::default(),
        })
    }

    /// Decides a request at an instant, in microseconds since 1970.
    pub fn decide(&mut self, at: i64, entry: &Entry, route: Option<&Arc<str>>) -> &Decided {
        self.clock.set(Timestamp::from_micros(at));
        self.status.store(entry.status.as_u16(), Ordering::Relaxed);
        let mut request = entry.request();
        if let Some(route) = route {
            request
                .extensions_mut()
                .insert(MatchedRoute(Arc::clone(route)));
        }
        // The layer does not call its hook for a request that it does not limit.
        lock(&self.noted).clear();
        let response = now(self.service.call(request)).map(|Ok(response)| response);
        if let Some(mut response) = response {
            // Charges are settled when the body has ended.
            now(std::future::poll_fn(|context| {
                Pin::new(response.body_mut()).poll_frame(context)
            }));
        }
        mem::swap(&mut *lock(&self.noted), &mut self.decided);
        &self.decided
    }
}

impl Decided {
    fn clear(&mut self) {
        self.limits.clear();
        (self.is_refused, self.lacks_key, self.is_overflow) = (false, false, false);
    }
}

fn lock(noted: &Mutex<Decided>) -> MutexGuard<'_, Decided> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(event: &Event<'_>, names: &[String], to: &mut Decided) {
    to.is_refused = !event.outcome.is_passed_on();
    to.lacks_key = matches!(event.outcome, Outcome::MissingKey);
    to.limits.resize(names.len(), None);
    for limit in event.limits() {
        let Some(LimitUnits { status, .. }) = limit.units() else {
            continue;
        };
        let name = limit.info.name.as_str();
        if let Some(index) = names.iter().position(|own| own == name) {
            to.limits[index] = Some(status.refuses());
        }
        to.is_overflow |= status.is_overflow();
    }
}

/// The output of a future that is ready at once, as all are that decide in memory.
fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// The service behind the layer: it responds with the status that the log has.
#[derive(Clone)]
struct AsLogged(Arc<AtomicU16>);

impl Service<Request<()>> for AsLogged {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new(Empty::new());
        if let Ok(status) = StatusCode::from_u16(self.0.load(Ordering::Relaxed)) {
            *response.status_mut() = status;
        }
        ready(Ok(response))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;
    use throttle_tower::throttle_core::backend::Call;
    use throttle_tower::throttle_core::{Limiter, Policy, PolicySet, PolicyTree};
    use throttle_tower::{Backend, Gcra, Key, SlidingLog};

    use super::*;
    use crate::args::{Arguments, Command};
    use crate::rule_file;

    fn run(text: &str) -> Run {
        let arguments = Arguments::parse_from(["replay", "replay", "rules.toml", "access.log"]);
        let Command::Replay { log, .. } = arguments.command else {
            unreachable!()
        };
        Run::new(&rule_file::from_text("throttle.toml", text, &log).unwrap()).unwrap()
    }

    fn entry(address: &str, status: u16) -> Entry {
        let line = format!(
            "{address} - - [10/Oct/2000:13:55:36 -0700] \"POST /login HTTP/1.1\" {status} 1"
        );
        crate::combined::read(line.as_bytes()).unwrap()
    }

    const TWO: &str = r#"
        version = 1
        [[limit]]
        name = "per-ip"
        gcra = { rate = "2/second", burst = 3 }
        by = "client-ip"
        [[limit]]
        name = "all"
        sliding-log = { rate = "7/3s" }
        by = "constant"
        cost = 2"#;

    proptest! {
        #[test]
        fn decisions_are_those_of_a_plain_limiter(requests in prop::collection::vec((0_u8..4, 0_i64..900_000), 1..200)) {
            let clock = ManualClock::default();
            let store = MemoryBackend::builder().clock(clock.clone()).build();
            let per_ip = Policy::new("per-ip", Gcra::new("2/second".parse().unwrap()).burst(3)).unwrap();
            let all = Policy::new("all", SlidingLog::new("7/3s".parse().unwrap())).unwrap();
            let set = PolicySet::new(PolicyTree::All(vec![per_ip.into(), all.into()])).unwrap();
            let limiter = Limiter::new(store, set.clone()).unwrap();
            let prepared = limiter.backend().prepare(set).unwrap();
            let (mut run, mut at) = (run(TWO), 1_700_000_000_000_000);
            for (client, step) in requests {
                at += step;
                clock.set(Timestamp::from_micros(at));
                let address = std::net::IpAddr::from([203, 0, 113, client]);
                let calls = [(Key::from(address), 1), (Key::CONSTANT, 2)]
                    .map(|(key, cost)| Call::new(key, throttle_tower::throttle_core::Cost::at_least_one(cost)));
                let expected = limiter.backend().decide_now(&prepared, &calls);
                let decided = run.decide(at, &entry(&address.to_string(), 200), None);
                prop_assert_eq!(decided.is_refused, !expected.is_admitted());
                let refuses: Vec<_> = expected.statuses().iter().map(|status| Some(status.refuses())).collect();
                prop_assert_eq!(&decided.limits, &refuses);
            }
        }
    }

    #[test]
    fn status_of_the_log_refunds() {
        let text = "version = 1\n[[limit]]\nname = \"login\"\nsliding-log = { rate = \"2/15m\" \
            }\nby = \"client-ip\"\n\
                    refund = \"successful\"\nmatch = { methods = [\"POST\"], paths = [\"/login\"] \
                    }";
        let mut run = run(text);
        let refused = [200, 401, 200, 401, 200].map(|status| {
            run.decide(0, &entry("203.0.113.9", status), None)
                .is_refused
        });
        assert_eq!(refused, [false, false, false, false, true]);
        let mut other = entry("203.0.113.9", 200);
        other.uri = "/".parse().unwrap();
        assert_eq!(
            run.decide(0, &other, None),
            &Decided {
                limits: vec![None],
                ..Decided::default()
            }
        );
    }
}
