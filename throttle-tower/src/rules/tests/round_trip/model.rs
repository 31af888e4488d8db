//! Rules as a model, of which any can be generated.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use throttle_core::Policy;

use crate::headers::{Dialect, ResetFormat, SdkHints};

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) address: Option<Address>,
    pub(super) defaults: Defaults,
    pub(super) layer: LayerSettings,
    pub(super) limits: Vec<Named>,
    pub(super) compose: Option<Vec<Group>>,
}

#[derive(Clone, Debug)]
pub(super) enum Address {
    /// By its word.
    Alone(&'static str),
    Trusted(&'static str, Vec<&'static str>),
    Hops(&'static str, u8),
    Header(&'static str, Vec<&'static str>),
    /// Of a header that lists the hops.
    Everyone(&'static str),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    pub(super) on_error: Option<Failing>,
    pub(super) on_missing: Option<Missing>,
}

/// What a file says of the layer.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerSettings {
    pub(super) headers: Option<Dialect>,
    pub(super) sdk_hints: Option<SdkHints>,
    pub(super) retry_jitter: Option<u8>,
    pub(super) max_waiting: Option<usize>,
    pub(super) report_in_response: Option<bool>,
    pub(super) grpc_refusals: Option<bool>,
    pub(super) unavailable_retry_after: Option<std::time::Duration>,
}

impl LayerSettings {
    /// As the reader shows what it has read: a field that is not there has its default.
    pub(super) fn read(&self) -> String {
        format!(
            "LayerSettings {{ headers: {:?}, sdk_hints: {:?}, retry_jitter: {:?}, max_waiting: {:?}, \
             report_in_response: {:?}, grpc_refusals: {:?}, unavailable_retry_after: {:?} }}",
            self.headers.unwrap_or(Dialect::Draft11),
            self.sdk_hints,
            self.retry_jitter.unwrap_or(0),
            self.max_waiting.unwrap_or(10_000),
            self.report_in_response.unwrap_or(false),
            self.grpc_refusals.unwrap_or(true),
            self.unavailable_retry_after,
        )
    }
}

#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) kind: AnyLimit,
}

#[derive(Clone, Debug)]
pub(super) enum AnyLimit {
    Limit { algorithm: Algorithm, key: Key, key_deadline: Option<Duration>, options: Options },
    Plans { key: Key, tiers: Vec<(&'static str, Algorithm)>, unknown: usize, options: Options },
    InFlight { most: u64, key: Option<Key>, cost: Option<Cost>, matching: Matching, on_missing: Option<Missing> },
}

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) cost: Option<Cost>,
    pub(super) matching: Matching,
    pub(super) unit: Option<String>,
    pub(super) on_missing: Option<Missing>,
    pub(super) on_error: Option<Failing>,
    pub(super) refunds: Vec<&'static str>,
    pub(super) charge_refused: Option<bool>,
    pub(super) settled_later: Option<bool>,
    pub(super) wait_up_to: Option<Duration>,
}

/// Which requests a limit applies to.
#[derive(Clone, Debug, Default)]
pub(super) struct Matching {
    pub(super) methods: Vec<&'static str>,
    pub(super) routes: Vec<&'static str>,
    pub(super) paths: Vec<&'static str>,
    pub(super) hosts: Vec<&'static str>,
    /// Conditions, and what they must say.
    pub(super) when: Vec<(&'static str, bool)>,
}

#[derive(Clone, Debug)]
pub(super) enum Algorithm {
    Gcra(Rate, Option<u64>),
    TokenBucket(Rate, Option<u64>),
    LeakyMeter(Rate, Option<u64>),
    IntervalBucket { capacity: u64, refill: u64, interval: Duration, aligned: Option<bool> },
    FixedWindow(Rate, Option<(bool, Duration)>),
    SlidingWindow(Rate, Option<u64>),
    SlidingLog(Rate),
    CalendarQuota { count: u64, period: Period, offset: Option<i32> },
}

#[derive(Clone, Debug)]
pub(super) enum Period {
    Per(&'static str),
    Fixed(Duration),
    Rolling(Duration),
}

#[derive(Clone, Debug)]
pub(super) struct Rate {
    pub(super) count: u64,
    pub(super) between: &'static str,
    pub(super) period: Duration,
}

/// As it is written, and in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Duration(pub(super) &'static str, pub(super) u64);

#[derive(Clone, Debug)]
pub(super) enum Key {
    ClientIp,
    Networks(Option<u8>, Option<u8>),
    Constant,
    Method,
    Route,
    Registered,
    /// By its name, and whether it is written as a table.
    Header(&'static str, bool),
    Lowercase(&'static str),
    Joined(Vec<Key>),
    FirstOf(Vec<Key>),
    /// Alone.
    Future,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Cost {
    Units(u64),
    Registered,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    Share,
    Skip,
    Reject(u16),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Failing {
    Open,
    Closed,
    Local(u32),
}

/// Members of a composition, by their places.
#[derive(Clone, Debug)]
pub(super) enum Group {
    One(usize),
    All(Vec<Group>),
    /// In a list without a word.
    List(Vec<Group>),
    Any(Vec<Group>, Option<bool>),
}

pub(super) fn model() -> impl Strategy<Value = Model> {
    let limits = vec((name(), any_limit()), 0..6).prop_map(|limits| {
        let mut named: Vec<Named> = Vec::new();
        for (name, kind) in limits {
            if named.iter().all(|limit| limit.name != name) {
                named.push(Named { name, kind });
            }
        }
        named
    });
    let parts = (of(address()), defaults(), layer(), limits, any::<u64>(), any::<bool>());
    parts.prop_map(|(address, defaults, layer, limits, seed, is_composed)| {
        let compose = (is_composed && !limits.is_empty()).then(|| composition(&limits, seed));
        Model { address, defaults, layer, limits, compose }
    })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[a-z]{1,8}", 1 => "[ -~]{1,12}", 1 => Just("in-flight".to_owned())]
}

fn address() -> impl Strategy<Value = Address> {
    let list = || select(&["x-forwarded-for", "forwarded"][..]);
    let nets = || select(&["10.0.0.0/28", "192.0.2.1", "2001:db8::/32", "2001:db8::7"][..]);
    let trusted = || vec(nets(), 1..3).prop_map(distinct);
    prop_oneof![
        select(&["peer", "fly-io", "google-cloud-load-balancer"][..]).prop_map(Address::Alone),
        (list(), trusted()).prop_map(|(list, trusted)| Address::Trusted(list, trusted)),
        (list(), 1..=20_u8).prop_map(|(list, hops)| Address::Hops(list, hops)),
        (select(&["cf-connecting-ip", "X-Real-IP"][..]), trusted()).prop_map(|(name, by)| Address::Header(name, by)),
        list().prop_map(Address::Everyone),
    ]
}

fn defaults() -> impl Strategy<Value = Defaults> {
    (of(failing()), of(missing())).prop_map(|(on_error, on_missing)| Defaults { on_error, on_missing })
}

fn layer() -> impl Strategy<Value = LayerSettings> {
    use ResetFormat::{DeltaSeconds, EpochSeconds};
    let dialects = vec![
        Dialect::Draft11,
        Dialect::Draft07,
        Dialect::Draft06,
        Dialect::Draft03,
        Dialect::XRateLimit(DeltaSeconds),
        Dialect::XRateLimit(EpochSeconds),
        Dialect::OpenAi,
        Dialect::None,
    ];
    let wait = || duration().prop_map(|wait| std::time::Duration::from_micros(wait.1));
    let hints = wait().prop_map(|wait| SdkHints::default().give_up_after(wait));
    let flags = (of(any::<bool>()), of(any::<bool>()));
    let parts = (of(select(dialects)), of(hints), of(0..=100_u8), of(0..5_000_usize), flags, of(wait()));
    parts.prop_map(|(headers, sdk_hints, retry_jitter, max_waiting, flags, unavailable_retry_after)| LayerSettings {
        headers,
        sdk_hints,
        retry_jitter,
        max_waiting,
        report_in_response: flags.0,
        grpc_refusals: flags.1,
        unavailable_retry_after,
    })
}

fn any_limit() -> impl Strategy<Value = AnyLimit> {
    let limit = (algorithm(), prop_oneof![4 => key(), 1 => Just(Key::Future)], of(duration()), options());
    let limit = limit.prop_map(|(algorithm, key, deadline, mut options)| {
        options.on_missing = options.on_missing.filter(|_| !key.is_never_missing());
        let key_deadline = deadline.filter(|_| matches!(key, Key::Future));
        AnyLimit::Limit { algorithm, key, key_deadline, options }
    });
    let tiers = (algorithm(), of(algorithm()), of(algorithm()), any::<prop::sample::Index>());
    let plans = (key(), tiers, options());
    let plans = plans.prop_map(|(key, (first, second, third, unknown), mut options)| {
        options.on_missing = options.on_missing.filter(|_| !key.is_never_missing());
        let others = [("pro", second), ("team 1", third)].into_iter().filter_map(|(name, tier)| Some((name, tier?)));
        let mut tiers: Vec<_> = [("free", first)].into_iter().chain(others).collect();
        // Tiers of unlike windows are refused.
        if Policy::tiered("p", tiers.iter().map(|(name, tier)| (name, tier.built()))).is_err() {
            tiers.truncate(1);
        }
        AnyLimit::Plans { key, unknown: unknown.index(tiers.len()), tiers, options }
    });
    let cost = of(prop_oneof![(1..=5_u64).prop_map(Cost::Units), Just(Cost::Registered)]);
    let in_flight = (5..1_000_u64, of(key()), cost, matching(), of(missing()));
    let in_flight = in_flight.prop_map(|(most, key, cost, matching, on_missing)| {
        let on_missing = on_missing.filter(|_| key.as_ref().is_some_and(|key| !key.is_never_missing()));
        AnyLimit::InFlight { most, key, cost, matching, on_missing }
    });
    prop_oneof![4 => limit, 1 => plans, 1 => in_flight]
}

fn options() -> impl Strategy<Value = Options> {
    let cost = of(prop_oneof![(0..=5_u64).prop_map(Cost::Units), Just(Cost::Registered)]);
    let flag = || of(any::<bool>());
    let refunds = vec(select(&["successful", "failed", "server-errors", "aborted", "cached"][..]), 0..4);
    let flags = (flag(), flag());
    let parts = (cost, matching(), of(unit()), of(missing()), of(failing()), refunds, flags, of(duration()));
    parts.prop_map(|(cost, matching, unit, on_missing, on_error, refunds, flags, wait_up_to)| {
        let (charge_refused, mut settled_later) = flags;
        // What costs nothing is settled later, and what is settled later has a cost.
        match cost {
            Some(Cost::Units(0)) => settled_later = Some(true),
            None => settled_later = settled_later.filter(|later| !later),
            Some(_) => {}
        }
        let mut refunds = distinct(refunds);
        if refunds.contains(&"successful") {
            refunds.retain(|refund| *refund != "failed");
        }
        Options { cost, matching, unit, on_missing, on_error, refunds, charge_refused, settled_later, wait_up_to }
    })
}

fn unit() -> impl Strategy<Value = String> {
    prop_oneof![Just("tokens".to_owned()), "[ -~]{1,64}"]
}

fn matching() -> impl Strategy<Value = Matching> {
    let some =
        |of: &'static [&'static str]| prop_oneof![3 => Just(Vec::new()), 1 => vec(select(of), 1..3).prop_map(distinct)];
    let when = vec((select(&["internal", "preflight"][..]), any::<bool>()), 0..3);
    let parts = (
        some(&["GET", "POST", "HEAD", "PURGE", "OPTIONS"]),
        some(&["/login", "/users/{name}", "/"]),
        some(&["/login", "/users/*", "/api/**", "/**"]),
        some(&["api.example.com", "*.example.com", "EXAMPLE.org"]),
        prop_oneof![3 => Just(Vec::new()), 1 => when],
    );
    parts.prop_map(|(methods, routes, paths, hosts, mut when)| {
        let mut names = std::collections::HashSet::new();
        when.retain(|(name, _)| names.insert(*name));
        Matching { methods, routes, paths, hosts, when }
    })
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let units = || 20..1_000_u64;
    let period = prop_oneof![
        select(&["day", "week", "month"][..]).prop_map(Period::Per),
        duration().prop_map(Period::Fixed),
        duration().prop_map(Period::Rolling),
    ];
    prop_oneof![
        (rate(), of(units())).prop_map(|(rate, burst)| Algorithm::Gcra(rate, burst)),
        (rate(), of(units())).prop_map(|(rate, burst)| Algorithm::TokenBucket(rate, burst)),
        (rate(), of(units())).prop_map(|(rate, capacity)| Algorithm::LeakyMeter(rate, capacity)),
        (units(), units(), duration(), of(any::<bool>())).prop_map(|(capacity, refill, interval, aligned)| {
            Algorithm::IntervalBucket { capacity, refill, interval, aligned }
        }),
        (rate(), of((any::<bool>(), duration()))).prop_map(|(rate, offset)| Algorithm::FixedWindow(rate, offset)),
        (rate(), of(select(&[1, 2, 5, 10, 100][..])))
            .prop_map(|(rate, buckets)| Algorithm::SlidingWindow(rate, buckets)),
        rate().prop_map(Algorithm::SlidingLog),
        (units(), period, of(-840..=840_i32)).prop_map(|(count, period, offset)| Algorithm::CalendarQuota {
            count,
            period,
            offset
        }),
    ]
}

fn rate() -> impl Strategy<Value = Rate> {
    let parts = (20..1_000_u64, select(&["/", " per ", " / "][..]), duration());
    parts.prop_map(|(count, between, period)| Rate { count, between, period })
}

fn duration() -> impl Strategy<Value = Duration> {
    const SECOND: u64 = 1_000_000;
    select(vec![
        Duration("1500us", 1_500),
        Duration("500ms", 500_000),
        Duration("1s", SECOND),
        Duration("10 seconds", 10 * SECOND),
        Duration("15m", 900 * SECOND),
        Duration("2 hr", 7_200 * SECOND),
        Duration("1 day", 86_400 * SECOND),
        Duration("30d", 30 * 86_400 * SECOND),
    ])
}

fn key() -> impl Strategy<Value = Key> {
    let header = || select(&["x-tenant", "X-User"][..]);
    let part = prop_oneof![
        Just(Key::ClientIp),
        (of(1..=32_u8), of(1..=128_u8)).prop_map(|(v4, v6)| Key::Networks(v4, v6)),
        Just(Key::Constant),
        Just(Key::Method),
        Just(Key::Route),
        Just(Key::Registered),
        (header(), any::<bool>()).prop_map(|(name, is_table)| Key::Header(name, is_table)),
        header().prop_map(Key::Lowercase),
    ];
    part.prop_recursive(2, 6, 3, |part| {
        prop_oneof![
            vec(part.clone(), 1..4).prop_map(|parts| Key::Joined(joinable(distinct(parts)))),
            vec(part, 1..4).prop_map(|keys| Key::FirstOf(reachable(distinct(keys)))),
        ]
    })
}

/// A list in which nothing stands twice.
fn distinct<T: std::fmt::Debug>(list: Vec<T>) -> Vec<T> {
    let mut seen = std::collections::HashSet::new();
    list.into_iter().filter(|one| seen.insert(format!("{one:?}"))).collect()
}

/// Without a part that adds nothing to others.
fn joinable(mut parts: Vec<Key>) -> Vec<Key> {
    if parts.len() > 1 {
        parts.retain(|part| !matches!(part, Key::Constant));
    }
    parts
}

/// Up to a key that is never missing.
fn reachable(mut keys: Vec<Key>) -> Vec<Key> {
    if let Some(last) = keys.iter().position(Key::is_never_missing) {
        keys.truncate(last + 1);
    }
    keys
}

impl Key {
    fn is_never_missing(&self) -> bool {
        match self {
            Self::Constant | Self::Method | Self::Route => true,
            Self::Joined(parts) => parts.iter().all(Self::is_never_missing),
            Self::FirstOf(keys) => keys.iter().any(Self::is_never_missing),
            _ => false,
        }
    }
}

fn missing() -> impl Strategy<Value = Missing> {
    prop_oneof![Just(Missing::Share), Just(Missing::Skip), select(&[400, 401, 429, 503][..]).prop_map(Missing::Reject)]
}

fn failing() -> impl Strategy<Value = Failing> {
    prop_oneof![Just(Failing::Open), Just(Failing::Closed), (1..100_u32).prop_map(Failing::Local)]
}

/// Each limit once, in groups. Limits on rates and on requests in flight are not in the same `any`.
fn composition(limits: &[Named], seed: u64) -> Vec<Group> {
    let mut random = super::layout::Random::new(seed);
    let mut places: Vec<usize> = (0..limits.len()).collect();
    for place in (1..places.len()).rev() {
        places.swap(place, random.below(place + 1));
    }
    let mut groups = Vec::new();
    while !places.is_empty() {
        let taken: Vec<usize> = places.drain(..=random.below(places.len().min(4))).collect();
        let in_flight = taken.iter().filter(|place| matches!(limits[**place].kind, AnyLimit::InFlight { .. })).count();
        let is_mixed = in_flight > 0 && in_flight < taken.len();
        let mut members: Vec<Group> = taken.into_iter().map(Group::One).collect();
        if members.len() > 2 && random.below(2) == 0 {
            let rest = members.split_off(1);
            members.push(if random.below(2) == 0 { Group::All(rest) } else { Group::List(rest) });
        }
        match random.below(4) {
            0 => groups.push(Group::All(members)),
            1 => groups.push(Group::List(members)),
            2 if !is_mixed => groups.push(Group::Any(members, [None, Some(false), Some(true)][random.below(3)])),
            _ => groups.extend(members),
        }
    }
    groups
}
