//! Random layers, whose answers are compared with those of a [naive model](naive): which requests
//! are admitted, after which wait a refused one would be, and what every limit has left. Some
//! layers select their limits, some have a limit on requests in flight, and their limits are
//! replaced on the way. Some requests are peeked at first, which must charge nothing.
//!
//! `THROTTLE_LAYERS=1000000 cargo test -p throttle-tests --test layer random_layers` draws more.

mod naive;

use std::convert::Infallible;
use std::mem;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use proptest::prelude::*;
use throttle_core::{ManualClock, MemoryBackend, Timestamp};
use throttle_tower::limit::{IntoLimitTree, Select};
use throttle_tower::{
    Audit, Constant, FixedWindow, Gcra, Header, InFlight, Limit, LimitReport, LimitTree, OnMissing,
    Rate, SlidingLog, ThrottleLayer, Usage, all, any, limit,
};
use tower::{Layer, ServiceExt, service_fn};

use naive::{Answer, Naive};

/// Where every history begins: not at the boundary of a window.
const START: Timestamp = Timestamp::from_micros(1_790_000_003_000_000);

#[derive(Clone, Debug)]
struct TestLayer {
    node: Node,
    in_flight: Option<PermitLeaf>,
    /// Whether the conditions are those of a `select`, and not of the limits.
    is_selected: bool,
    /// Whether every tenth request meets other limits of the same names, or the first ones again.
    is_replaced: bool,
}

/// A limit on requests in flight.
#[derive(Clone, Debug)]
struct PermitLeaf {
    most: u64,
    by: By,
    kind: Option<u16>,
}

/// Finds the limits that apply to the kind of a request.
struct ByKind(Vec<Option<u16>>);

impl Select for ByKind {
    fn select(&self, parts: &Parts, found: &mut dyn FnMut(usize)) {
        let of_request = number(parts, "x-kind");
        for (index, kind) in self.0.iter().enumerate() {
            if kind.is_none_or(|kind| u64::from(kind) == of_request) {
                found(index);
            }
        }
    }
}

impl TestLayer {
    fn tree(&self) -> LimitTree {
        let mut members = vec![self.node.tree(self.is_selected)];
        let mut kinds = Vec::new();
        if let Some(own) = &self.in_flight {
            kinds.push(own.kind);
            members.insert(0, own.limit(self.is_selected).into_limit_tree());
        }
        let tree = all(members);
        if !self.is_selected {
            return tree;
        }
        self.node.add_kinds(&mut kinds);
        tree.select(ByKind(kinds))
    }

    /// The same limits in another order, without the first of each composition.
    fn other(&self) -> Self {
        Self {
            node: self.node.other(),
            ..self.clone()
        }
    }
}

impl PermitLeaf {
    fn limit(&self, is_selected: bool) -> Limit<InFlight> {
        let limit = limit("in-flight", InFlight::new(self.most));
        let limit = match self.by {
            By::Constant => limit.by(Constant),
            By::Header(name) => limit.by(Header::new(name)),
        };
        match self.kind {
            Some(kind) if !is_selected => {
                limit.when(move |parts| number(parts, "x-kind") == u64::from(kind))
            }
            _ => limit,
        }
    }
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(Leaf),
    All(Vec<Self>),
    /// Whether it charges every member that admits.
    Any(Vec<Self>, bool),
}

#[derive(Clone, Debug)]
struct Leaf {
    /// Its number from the left, which is its name.
    index: usize,
    count: Count,
    by: By,
    on_missing: OnMissing,
    cost: Cost,
    /// Applies only to requests of this kind.
    kind: Option<u16>,
    /// The units that requests of the lower class leave free.
    reserve: Option<u64>,
    is_audited: bool,
    refunds_not_found: bool,
    charges_refused: bool,
    is_settled: bool,
}

#[derive(Clone, Copy, Debug)]
enum Count {
    /// A unit each so many seconds, and a burst.
    Gcra {
        interval: u64,
        burst: u64,
    },
    /// Units in so many seconds.
    Window {
        most: u64,
        seconds: u64,
    },
    Log {
        most: u64,
        seconds: u64,
    },
}

impl Count {
    fn most(self) -> u64 {
        match self {
            Self::Gcra { burst, .. } => burst,
            Self::Window { most, .. } | Self::Log { most, .. } => most,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Constant,
    Header(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Cost {
    Units(u64),
    /// The request's `x-cost`.
    Asked,
}

/// What a client sends, and how the handler answers it.
#[derive(Clone, Debug)]
struct ClientRequest {
    /// Milliseconds since the request before.
    after: u64,
    /// The values of the headers `x-a` and `x-b`.
    keys: [Option<&'static str>; 2],
    cost: u64,
    kind: u16,
    is_low: bool,
    is_found: bool,
    /// What the handler settles for each limit whose cost is an estimate.
    settled: Option<u64>,
    /// Whether the layer is asked about it first.
    is_peeked: bool,
    /// How many later requests come before the response's body ends.
    held_for: usize,
}

fn leaf() -> impl Strategy<Value = Leaf> {
    let count = prop_oneof![
        (1..=4_u64, 1..=5_u64).prop_map(|(interval, burst)| Count::Gcra { interval, burst }),
        (1..=5_u64, 2..=10_u64).prop_map(|(most, seconds)| Count::Window { most, seconds }),
        (1..=5_u64, 2..=10_u64).prop_map(|(most, seconds)| Count::Log { most, seconds }),
    ];
    let by = prop_oneof![
        Just(By::Constant),
        Just(By::Header("x-a")),
        Just(By::Header("x-b"))
    ];
    let on_missing = prop_oneof![
        3 => Just(OnMissing::Share),
        3 => Just(OnMissing::Skip),
        1 => Just(OnMissing::Reject(StatusCode::UNAUTHORIZED)),
    ];
    let cost = prop_oneof![
        3 => Just(Cost::Units(1)),
        1 => (0..=2_u64).prop_map(Cost::Units),
        2 => Just(Cost::Asked),
    ];
    let kind = prop::option::weighted(0.2, 0..2_u16);
    let reserve = prop::option::weighted(0.2, 1..=2_u64);
    let rarely = || prop::bool::weighted(0.2);
    let options = (rarely(), rarely(), rarely(), rarely());
    (count, by, on_missing, cost, kind, reserve, options).prop_map(
        |(count, by, on_missing, cost, kind, reserve, (audited, refunds, charges, settled))| Leaf {
            index: 0,
            count,
            by,
            on_missing,
            cost: match cost {
                Cost::Units(units) => {
                    Cost::Units(units.min(count.most() - reserve_of(reserve, count)))
                }
                Cost::Asked => cost,
            },
            kind,
            reserve: Some(reserve_of(reserve, count)).filter(|reserve| *reserve > 0),
            is_audited: audited,
            refunds_not_found: refunds,
            charges_refused: charges,
            is_settled: settled,
        },
    )
}

/// A reserve leaves room for a request.
fn reserve_of(reserve: Option<u64>, count: Count) -> u64 {
    reserve.map_or(0, |reserve| reserve.min(count.most() - 1))
}

fn node() -> impl Strategy<Value = Node> {
    let members = |member| prop::collection::vec(member, 1..=3);
    let tree = leaf()
        .prop_map(Node::Leaf)
        .prop_recursive(3, 8, 3, move |member| {
            prop_oneof![
                members(member.clone()).prop_map(Node::All),
                (members(member), prop::bool::weighted(0.2))
                    .prop_map(|(members, every)| Node::Any(members, every)),
            ]
        });
    tree.prop_map(|mut node| {
        node.finish(&mut 0, false);
        node
    })
}

fn layer() -> impl Strategy<Value = TestLayer> {
    let by = prop_oneof![Just(By::Constant), Just(By::Header("x-a"))];
    let kind = prop::option::weighted(0.3, 0..2_u16);
    let in_flight =
        (1..=3_u64, by, kind).prop_map(|(most, by, kind)| PermitLeaf { most, by, kind });
    let in_flight = prop::option::weighted(0.3, in_flight);
    let flags = (prop::bool::weighted(0.3), prop::bool::weighted(0.3));
    (node(), in_flight, flags).prop_map(|(node, in_flight, (is_selected, is_replaced))| TestLayer {
        node,
        in_flight,
        is_selected,
        is_replaced,
    })
}

fn sent() -> impl Strategy<Value = ClientRequest> {
    let after = prop_oneof![2 => Just(0), 2 => 0..1_500_u64, 1 => 0..12_000_u64];
    let key = || prop::option::weighted(0.8, prop_oneof![2 => Just("one"), 1 => Just("two")]);
    let cost = prop_oneof![4 => 0..=3_u64, 1 => Just(9)];
    let settled = prop::option::of(0..=4_u64);
    let rest = (
        0..2_u16,
        prop::bool::ANY,
        prop::bool::weighted(0.8),
        settled,
        prop::bool::weighted(0.3),
        prop_oneof![2 => Just(0), 1 => 1..6_usize],
    );
    (after, [key(), key()], cost, rest).prop_map(
        |(after, keys, cost, (kind, is_low, is_found, settled, is_peeked, held_for))| {
            ClientRequest {
                after,
                keys,
                cost,
                kind,
                is_low,
                is_found,
                settled,
                is_peeked,
                held_for,
            }
        },
    )
}

impl Node {
    /// Numbers the leaves, and takes from them what may not be inside an `any`.
    fn finish(&mut self, next: &mut usize, in_any: bool) {
        match self {
            Self::Leaf(leaf) => {
                leaf.index = *next;
                *next += 1;
                let rejects = matches!(leaf.on_missing, OnMissing::Reject(_));
                leaf.is_audited &= !in_any && !rejects;
            }
            Self::All(members) => members.iter_mut().for_each(|one| one.finish(next, in_any)),
            Self::Any(members, _) => members.iter_mut().for_each(|one| one.finish(next, true)),
        }
    }

    fn add_kinds(&self, kinds: &mut Vec<Option<u16>>) {
        match self {
            Self::Leaf(leaf) => kinds.push(leaf.kind),
            Self::All(members) | Self::Any(members, _) => {
                members.iter().for_each(|member| member.add_kinds(kinds));
            }
        }
    }

    fn other(&self) -> Self {
        let others = |members: &[Self]| {
            let first = usize::from(members.len() > 1);
            members[first..].iter().rev().map(Self::other).collect()
        };
        match self {
            Self::Leaf(_) => self.clone(),
            Self::All(members) => Self::All(others(members)),
            Self::Any(members, every) => Self::Any(others(members), *every),
        }
    }

    fn tree(&self, is_selected: bool) -> LimitTree {
        let trees = |members: &[Self]| -> Vec<_> {
            let trees = members.iter().map(|member| member.tree(is_selected));
            trees.collect()
        };
        match self {
            Self::Leaf(leaf) => leaf.limit(is_selected).into_limit_tree(),
            Self::All(members) => all(trees(members)),
            Self::Any(members, every) => {
                let tree = any(trees(members));
                if *every {
                    tree.charge_every_admitting()
                } else {
                    tree
                }
            }
        }
    }
}

fn number(parts: &Parts, name: &str) -> u64 {
    parts.headers[name].to_str().unwrap().parse().unwrap()
}

impl Leaf {
    fn name(&self) -> String {
        format!("p{}", self.index)
    }

    fn limit(&self, is_selected: bool) -> Limit {
        let name = self.name();
        let unkeyed = match self.count {
            Count::Gcra { interval, burst } => limit(
                name,
                Gcra::new(Rate::new(1, Duration::from_secs(interval))).burst(burst),
            ),
            Count::Window { most, seconds } => limit(
                name,
                FixedWindow::new(Rate::new(most, Duration::from_secs(seconds))),
            ),
            Count::Log { most, seconds } => limit(
                name,
                SlidingLog::new(Rate::new(most, Duration::from_secs(seconds))),
            ),
        };
        let mut limit = match self.by {
            By::Constant => unkeyed.by(Constant),
            By::Header(name) => unkeyed.by(Header::new(name)),
        };
        limit = limit.on_missing(self.on_missing);
        limit = match self.cost {
            Cost::Units(units) => limit.cost(units),
            Cost::Asked => limit.cost(|parts: &Parts| number(parts, "x-cost")),
        };
        if let Some(kind) = self.kind.filter(|_| !is_selected) {
            limit = limit.when(move |parts| number(parts, "x-kind") == u64::from(kind));
        }
        if let Some(reserve) = self.reserve {
            limit = limit.priority([("high", 0), ("low", reserve)], |parts: &Parts| {
                if number(parts, "x-low") == 1 {
                    "low"
                } else {
                    "high"
                }
            });
        }
        if self.is_audited {
            limit = limit.audit(Audit::Silent);
        }
        if self.refunds_not_found {
            limit = limit.refund_if(|status, _| status == StatusCode::NOT_FOUND);
        }
        if self.charges_refused {
            limit = limit.charge_refused();
        }
        if self.is_settled {
            limit = limit.settled_later();
        }
        limit
    }
}

impl ClientRequest {
    fn request(&self) -> Request<()> {
        let mut request = Request::get("/")
            .header("x-cost", self.cost)
            .header("x-kind", self.kind)
            .header("x-low", u16::from(self.is_low))
            .header("x-found", u16::from(self.is_found));
        for (name, key) in ["x-a", "x-b"].into_iter().zip(self.keys) {
            if let Some(key) = key {
                request = request.header(name, key);
            }
        }
        if let Some(settled) = self.settled {
            request = request.header("x-settled", settled);
        }
        request.body(()).unwrap()
    }
}

/// Answers as the request says, and settles what it says of each estimate.
async fn handle(request: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    let usage: Option<&Usage> = request.extensions().get();
    let settled = request.headers().get("x-settled");
    if let (Some(usage), Some(settled)) = (usage, settled) {
        let settled: u64 = settled.to_str().unwrap().parse().unwrap();
        let policies: Vec<_> = usage.policies().map(str::to_owned).collect();
        for policy in policies {
            usage.settle(&policy, settled).unwrap();
        }
    }
    let is_found = request.headers()["x-found"] == "1";
    let status = if is_found {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    let mut response = Response::new(Full::from("body"));
    *response.status_mut() = status;
    Ok(response)
}

/// What the headers say is left of each limit.
fn stated(headers: &HeaderMap) -> Vec<(String, u64)> {
    let header = headers
        .get("ratelimit")
        .map(|header| header.to_str().unwrap());
    let mut stated: Vec<_> = header
        .into_iter()
        .flat_map(|header| header.split(", "))
        .map(|limit| {
            let mut parts = limit.split(';');
            let name = parts.next().unwrap().trim_matches('"').to_owned();
            let left = parts.find_map(|part| part.strip_prefix("r=")).unwrap();
            (name, left.parse().unwrap())
        })
        .collect();
    stated.sort();
    stated
}

/// What the layer answered, in the words of the model. The handler's response is an admission.
fn answer(response: &Response<impl Sized>) -> Answer {
    let status = response.status();
    if status == StatusCode::UNAUTHORIZED {
        return Answer::Rejected;
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return Answer::NoPermit;
    }
    let Some(report) = response.extensions().get::<LimitReport>() else {
        panic!("a response without a report: {status}");
    };
    let mut left: Vec<_> = report
        .statuses()
        .map(|(policy, status)| (policy.name().to_owned(), status.remaining()))
        .collect();
    left.sort();
    let decision = report.decision();
    assert_eq!(
        status == StatusCode::TOO_MANY_REQUESTS,
        !decision.is_admitted()
    );
    if decision.is_admitted() {
        let stated = stated(response.headers());
        return Answer::Admitted { left, stated };
    }
    let wait = decision.retry_after().map(|wait| wait.as_micros());
    Answer::Refused { left, wait }
}

fn agrees_with_the_model(test: &TestLayer, history: &[ClientRequest]) -> Result<(), TestCaseError> {
    let clock = ManualClock::new(START);
    let store = MemoryBackend::builder().clock(clock.clone()).build();
    let builder = ThrottleLayer::builder(test.tree()).backend(store);
    let layer = match builder.report_in(throttle_tower::ReportIn::Both).build() {
        Ok(layer) => layer,
        Err(error) => return Err(TestCaseError::reject(error.to_string())),
    };
    let service = layer.layer(service_fn(handle));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut naive = Naive::default();
    let mut now = START.as_micros();
    let (mut current, mut other) = (test.clone(), test.other());
    let mut held = Vec::new();
    for (number, sent) in history.iter().enumerate() {
        if test.is_replaced && number % 10 == 9 {
            if let Err(error) = layer.replace(other.tree()) {
                return Err(TestCaseError::reject(error.to_string()));
            }
            mem::swap(&mut current, &mut other);
        }
        held.retain(|(until, _)| *until > number);
        naive.end_bodies(number);
        clock.advance(Duration::from_millis(sent.after));
        now += i64::try_from(sent.after).unwrap() * 1_000;
        let head = sent.request().into_parts().0;
        let peek = sent.is_peeked.then(|| runtime.block_on(layer.peek(&head)));
        let response = runtime
            .block_on(service.clone().oneshot(sent.request()))
            .unwrap();
        let answered = answer(&response);
        held.push((number + 1 + sent.held_for, response));
        let expected = naive.answer(&current, sent, now, number);
        if let Some(peek) = peek {
            let peek = peek.unwrap().expect("it applies to every request");
            let wait = match &expected {
                Answer::Admitted { .. } => Some(0),
                Answer::Refused { wait, .. } => *wait,
                Answer::Rejected | Answer::NoPermit => None,
            };
            let peeked = peek.retry_after().map(|wait| wait.as_micros());
            prop_assert_eq!(peeked, wait, "peek {}", number);
        }
        prop_assert_eq!(answered, expected, "request {}", number);
    }
    Ok(())
}

/// 20,000, or as many as the environment says.
fn layers() -> u32 {
    let asked = std::env::var("THROTTLE_LAYERS").map(|most| most.parse().unwrap());
    asked.unwrap_or(20_000)
}

#[test]
fn random_layers_answer_as_the_naive_model_says() {
    let config = ProptestConfig {
        max_global_rejects: u32::MAX,
        ..ProptestConfig::with_cases(layers())
    };
    proptest!(config, |(layer in layer(), history in prop::collection::vec(sent(), 1..40))| {
        agrees_with_the_model(&layer, &history)?;
    });
}
