use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use proptest::prelude::*;
use throttle_core::backend::Call;
use throttle_core::{
    Algorithm, Decision, FixedWindow, Gcra, IntoAlgorithm, Key, ManualClock, MemoryBackend, Rate,
    SlidingLog,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::failing_backend::FailingBackend;
use crate::limit::Select;
use crate::throttle::Throttle;
use crate::{
    Audit, Dialect, Event, Header, Limit, LimitReport, LimitStatus, LimitTree, OnError, OnMissing,
    ThrottleLayer, all, any, limit,
};

type Memory = MemoryBackend<ManualClock>;

#[derive(Clone, Debug)]
enum Node {
    Limit(Leaf),
    All(Vec<Self>),
    Any(Vec<Self>),
}

#[derive(Clone, Debug)]
struct Leaf {
    algorithm: Algorithm,
    /// Which bit of a request says whether it applies.
    when: Option<u32>,
    cost: u64,
    /// What else it does, by a number.
    option: u8,
}

fn node() -> impl Strategy<Value = Node> {
    let algorithm = (0..3_u8, 1..6_u64).prop_map(|(kind, count)| match kind {
        0 => Gcra::new(Rate::per_minute(count))
            .burst(count)
            .into_algorithm()
            .unwrap(),
        1 => FixedWindow::new(Rate::per_minute(count))
            .into_algorithm()
            .unwrap(),
        _ => SlidingLog::new(Rate::per_minute(count))
            .into_algorithm()
            .unwrap(),
    });
    let when = prop_oneof![1 => Just(None), 3 => (0..12_u32).prop_map(Some)];
    let leaf = (algorithm, when, 0..3_u64, 0..8_u8);
    let leaf = leaf.prop_map(|(algorithm, when, cost, option)| {
        Node::Limit(Leaf {
            algorithm,
            when,
            cost,
            option,
        })
    });
    let members = |member| prop::collection::vec(member, 1..=4);
    leaf.prop_recursive(3, 14, 4, move |member| {
        prop_oneof![2 => members(member.clone()).prop_map(Node::All), 1 => members(member).prop_map(Node::Any)]
    })
}

impl Leaf {
    fn limit(&self, name: String, in_any: bool) -> Limit {
        let limit = limit(name, self.algorithm)
            .by(Header::new("x-key"))
            .cost(self.cost);
        match self.option {
            0 => limit.on_missing(OnMissing::Skip),
            1 => limit.on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED)),
            2 if !in_any => limit.on_missing(OnMissing::Share).audit(Audit::Announced),
            3 => limit.priority([("high", 0), ("low", 1)], |parts: &Parts| {
                text(parts, "x-class").to_owned()
            }),
            4 => limit.charge_refused(),
            5 => limit.refund_if(limit::successful),
            6 => limit.settled_later(),
            _ => limit.warn_at(0.5),
        }
    }
}

/// Finds limits by the bits of a request.
struct ByBits(Vec<Option<u32>>);

impl Select for ByBits {
    fn select(&self, parts: &Parts, found: &mut dyn FnMut(usize)) {
        let bits: u32 = text(parts, "x-bits").parse().unwrap();
        let applies = |bit: &Option<u32>| bit.is_none_or(|bit| bits >> bit & 1 == 1);
        let limits = self.0.iter().enumerate().rev();
        let applying = limits.filter(|(_, bit)| applies(bit));
        applying.map(|(limit, _)| limit).for_each(found);
    }
}

/// Limits that are never found, because a few selected limits are one set.
fn others() -> LimitTree {
    let other = |n: usize| {
        let gcra = Gcra::new(Rate::per_hour(1));
        limit(format!("other-{n}"), gcra)
            .by(crate::Constant)
            .on_error(OnError::Open)
    };
    all((0..40).map(other).collect::<Vec<_>>())
}

fn text<'p>(parts: &'p Parts, name: &str) -> &'p str {
    parts
        .headers
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

impl Node {
    /// Adds the conditions of its limits to `bits`.
    fn tree(&self, bits: &mut Vec<Option<u32>>, in_any: bool) -> LimitTree {
        let members = |nodes: &[Self], bits: &mut Vec<_>, in_any| -> Vec<LimitTree> {
            nodes.iter().map(|node| node.tree(bits, in_any)).collect()
        };
        match self {
            Self::Limit(leaf) => {
                bits.push(leaf.when);
                leaf.limit(format!("p{}", bits.len()), in_any).into()
            }
            Self::All(nodes) => all(members(nodes, bits, in_any)),
            Self::Any(nodes) => any(members(nodes, bits, true)),
        }
    }

    /// The composition with what finds its limits, next to a limit of all requests.
    fn selected(&self) -> LimitTree {
        let mut bits = Vec::new();
        let tree = self.tree(&mut bits, false);
        let always = limit("always", Gcra::new(Rate::per_minute(9))).by(crate::Constant);
        all((always, all((tree, others())).select(ByBits(bits))))
    }
}

/// What observers receive: the limits that apply, the one that decided, those that are near their
/// ends, and those that would have refused.
type Heard = [Vec<String>; 4];

struct Side {
    layer: ThrottleLayer<Memory>,
    heard: Arc<Mutex<Vec<Heard>>>,
}

/// All that is seen of a request.
#[derive(Debug, PartialEq)]
struct Seen {
    status: StatusCode,
    headers: HeaderMap,
    /// The sums of the decision, the limits that apply, and the binding policy.
    report: Option<(String, Vec<String>, Option<String>)>,
}

impl Side {
    fn new(node: &Node, clock: &ManualClock, is_whole: bool) -> Option<Self> {
        let heard = Arc::<Mutex<Vec<Heard>>>::default();
        let log = Arc::clone(&heard);
        let hook = move |event: &Event<'_>| {
            let texts = |limits: &mut dyn Iterator<Item = LimitStatus<'_>>| {
                let text = |limit: LimitStatus<'_>| format!("{} {:?}", limit.index, limit.state);
                limits.map(text).collect()
            };
            let heard = [
                texts(&mut event.limits()),
                texts(&mut event.binding().into_iter()),
                texts(&mut event.near()),
                texts(&mut event.would_refuse()),
            ];
            log.lock().unwrap().push(heard);
        };
        let store = MemoryBackend::builder().clock(clock.clone()).build();
        let layer = ThrottleLayer::builder(node.selected())
            .backend(store)
            .report_in(crate::ReportIn::Both)
            .on_decision(hook)
            .build()
            .ok()?;
        layer.current.with(|shared| {
            let narrowed = shared.narrowed.as_ref().filter(|_| is_whole);
            narrowed.map(|narrowed| narrowed.fill())
        });
        Some(Self { layer, heard })
    }

    async fn send(&self, bits: u32, key: Option<&str>, class: &str) -> Seen {
        let request = Request::builder()
            .header("x-bits", bits)
            .header("x-class", class);
        let request = key
            .into_iter()
            .fold(request, |request, key| request.header("x-key", key));
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        let response = self
            .layer
            .layer(inner)
            .oneshot(request.body(()).unwrap())
            .await
            .unwrap();
        let report = response.extensions().get::<LimitReport>().map(|report| {
            let decision = report.decision();
            let sums = (
                (decision.is_admitted(), decision.remaining()),
                [decision.reset_after(), decision.delay()],
                (decision.retry_after(), decision.decided_by()),
            );
            let text = |limit: LimitStatus<'_>| format!("{} {:?}", limit.index, limit.state);
            (
                format!("{sums:?}"),
                report.limits().map(text).collect(),
                report.binding().map(|policy| policy.name().to_owned()),
            )
        });
        Seen {
            status: response.status(),
            headers: response.headers().clone(),
            report,
        }
    }

    /// Where each key stands with each policy.
    fn states(&self) -> Vec<Decision> {
        self.layer.current.with(|shared| {
            let look = |key: &str| {
                let call = Call::peek(Key::builder().bytes(key.as_bytes()).finish());
                shared
                    .backend
                    .decide_now(&shared.prepared, &vec![call; shared.applied.len()])
            };
            ["ada", "bob"].map(look).into()
        })
    }
}

fn assert_same<T: PartialEq + Debug>(narrowed: &T, whole: &T) -> Result<(), TestCaseError> {
    prop_assert_eq!(narrowed, whole);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Responses, reports, hooks and states are those of a layer that asks all limits and skips
    /// some.
    #[test]
    fn limits_that_are_left_out_change_nothing(
        node in node(),
        requests in prop::collection::vec(
            (0..4_096_u32, prop::option::weighted(0.9, 0..2_usize), prop::bool::ANY, 0..20_u64), 1..40,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let clock = ManualClock::default();
        let [narrowed, whole] = [false, true].map(|is_whole| Side::new(&node, &clock, is_whole));
        // Some options do not go with others.
        let (Some(narrowed), Some(whole)) = (narrowed, whole) else { return Ok(()) };
        for (bits, key, is_low, ahead) in requests {
            clock.advance(Duration::from_secs(ahead));
            let (key, class) = (key.map(|key| ["ada", "bob"][key]), if is_low { "low" } else { "high" });
            let [one, other] = [&narrowed, &whole].map(|side| runtime.block_on(side.send(bits, key, class)));
            assert_same(&one, &other)?;
            assert_same(&narrowed.states(), &whole.states())?;
        }
        assert_same(&*narrowed.heard.lock().unwrap(), &*whole.heard.lock().unwrap())?;
    }
}

fn of_hour(name: &str, count: u64) -> Limit {
    let gcra = Gcra::new(Rate::per_hour(count)).burst(count);
    limit(name, gcra).by(crate::Constant)
}

/// Finds limits by their paths, in their order, and counts how often it is called.
#[derive(Clone, Default)]
struct ByPath {
    paths: Vec<&'static str>,
    calls: Arc<AtomicUsize>,
}

impl Select for ByPath {
    fn select(&self, parts: &Parts, found: &mut dyn FnMut(usize)) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let limits = self.paths.iter().enumerate();
        let applying = limits.filter(|(_, path)| **path == parts.uri.path());
        applying.map(|(limit, _)| limit).for_each(found);
    }
}

impl ByPath {
    /// Limits with their paths, and what finds them among others.
    fn select(limits: Vec<(&'static str, Limit)>) -> (Self, LimitTree) {
        let (paths, limits): (Vec<_>, Vec<_>) = limits.into_iter().unzip();
        let calls = Arc::default();
        let select = Self { paths, calls };
        let tree = all((all(limits), others())).select(select.clone());
        (select, tree)
    }
}

async fn send<S>(service: &Throttle<S>, path: &str) -> Response<()>
where
    S: tower::Service<Request<()>, Response = Response<()>, Error = Infallible> + Clone,
{
    service
        .clone()
        .oneshot(Request::get(path).body(()).unwrap())
        .await
        .unwrap()
        .map(drop)
}

async fn answer(_: Request<()>) -> Result<Response<()>, Infallible> {
    Ok(Response::new(()))
}

#[tokio::test]
async fn setting_that_is_replaced_after_requests_counts_for_all_requests() {
    let (_, limits) = ByPath::select(vec![("/a", of_hour("a", 9)), ("/b", of_hour("b", 9))]);
    let builder = ThrottleLayer::builder(limits);
    let layer = builder.clone().build().unwrap();
    for (dialect, header) in [
        (Dialect::Draft11, "ratelimit-policy"),
        (Dialect::Draft07, "ratelimit"),
    ] {
        layer
            .replace_with(builder.clone().headers(dialect))
            .unwrap();
        for path in ["/a", "/b"] {
            let response = send(&layer.layer(service_fn(answer)), path).await;
            assert!(response.headers().contains_key(header), "{dialect:?}");
            let has_list = response
                .headers()
                .get("ratelimit-policy")
                .is_some_and(|list| list == "9;w=3600");
            assert_eq!(has_list, dialect == Dialect::Draft07);
        }
    }
}

#[tokio::test]
async fn limits_are_selected_once_for_each_request_whatever_is_kept() {
    for is_full in [false, true] {
        let (select, limits) = ByPath::select(vec![
            ("/", of_hour("a", 9)),
            ("/b", of_hour("b", 9)),
            ("/", of_hour("later", 9).settled_later()),
        ]);
        let layer = ThrottleLayer::new(limits).unwrap();
        layer.current.with(|shared| {
            let narrowed = shared.narrowed.as_ref().filter(|_| is_full);
            narrowed.map(|narrowed| narrowed.fill())
        });
        let service = layer.layer(service_fn(answer));
        for sent in 1..=3 {
            send(&service, "/").await;
            assert_eq!(
                select.calls.load(Ordering::Relaxed),
                sent,
                "full: {is_full}"
            );
        }
    }
}

/// By the shares of this process, of which a limit has one, and by what else its rule says.
#[tokio::test]
async fn limits_that_are_left_out_change_nothing_where_the_store_fails() {
    let layer = |rules: [OnError; 3]| {
        let of = |n: u64| {
            let path = ["/0", "/1", "/2", "/3"][n as usize % 4];
            let limit = of_hour(&format!("p{n}"), n % 7 + 2);
            (path, limit.on_error(rules[n as usize % 3]))
        };
        let (_, selected) = ByPath::select((0..40).map(of).collect());
        let always = of_hour("always", 20).on_error(rules[0]);
        ThrottleLayer::builder(all((selected, always)))
            .backend(FailingBackend)
            .build()
            .unwrap()
    };
    let (local, open, closed) = (OnError::local(1), OnError::Open, OnError::Closed);
    for rules in [
        [local; 3],
        [local, open, local],
        [open; 3],
        [local, closed, open],
    ] {
        let [narrowed, whole] = [(); 2].map(|()| layer(rules));
        assert!(narrowed.current.with(|shared| shared.narrowed.is_some()));
        whole
            .current
            .with(|shared| shared.narrowed.as_ref().unwrap().fill());
        let [narrowed, whole] = [&narrowed, &whole].map(|layer| layer.layer(service_fn(answer)));
        for n in 0..30 {
            let path = ["/0", "/1", "/2", "/3", "/"][n % 5];
            let mut seen = Vec::new();
            for service in [&narrowed, &whole] {
                let response = service
                    .clone()
                    .oneshot(Request::get(path).body(()).unwrap())
                    .await
                    .unwrap();
                let policies = response.headers().get("ratelimit-policy").cloned();
                seen.push((
                    response.status(),
                    policies,
                    response.headers().get("retry-after").cloned(),
                ));
            }
            assert_eq!(seen[0], seen[1], "{rules:?}, request {n}");
        }
    }
}
